// The replay rings of a pool: pending records of every layer and the cursors they share. The
// protocol is in include/linestate/ops/replay_ring.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "linestate/state_pool.h"
#include "linestate/status.h"

namespace linestate {

/// kInvalidArgument naming the field of spec.replay that breaks its rule.
Status validate_replay(const PoolSpec& spec);

/// Ring bytes of one slot over all layers, cursor included; 0 without rings.
int64_t replay_bytes_per_slot(const PoolSpec& spec);

class ReplayRings {
 public:
  /// No rings.
  ReplayRings() = default;
  /// Empty rings for num_slots slots. Errors: kResourceExhausted.
  static Result<ReplayRings> create(const PoolSpec& spec, int64_t num_slots);

  bool present() const { return memory_ != nullptr; }
  const ReplayRing& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  TensorView cursor() const { return cursor_; }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Free> memory_;
  std::vector<ReplayRing> layers_;
  TensorView cursor_;
};

}  // namespace linestate
