// The replay rings of a pool: pending records of every layer and the cursors they share. The
// protocol is in include/linestate/ops/replay_ring.h.
#pragma once

#include <cstdint>
#include <vector>

#include "linestate/device_memory.h"
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
  /// Empty rings for num_slots slots in memory of `device`, which is waited for once.
  /// Errors: kResourceExhausted, kDevice.
  static Result<ReplayRings> create(const PoolSpec& spec, int64_t num_slots, Device device);

  bool present() const { return memory_.data() != nullptr; }
  const ReplayRing& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  TensorView cursor() const { return cursor_; }
  /// [H] f32 of a Lightning layer on the pool's device; undefined for KDA.
  ConstTensorView slopes(int64_t index) const { return slopes_[static_cast<size_t>(index)]; }

 private:
  Status fill(const PoolSpec& spec);

  DeviceMemory memory_;
  std::vector<ReplayRing> layers_;
  std::vector<TensorView> slopes_;
  TensorView cursor_;
};

}  // namespace linestate
