// The planes of one slot where the host can read and write them: in the pool itself on the CPU, in
// the caller's staging memory for a pool of a device.
#pragma once

#include <cstdint>
#include <vector>

#include "linestate/state/slot_pack.h"
#include "linestate/state_pool.h"
#include "state/slot_codec.h"

namespace linestate {

class StagedSlot {
 public:
  /// Errors: kInvalidArgument (staging too small), kUnsupported (a device plane with a negative
  /// stride). REQUIRES: memory bound, 0 <= slot < P.
  static Result<StagedSlot> create(const StatePool& pool, int32_t slot, const SlotStaging& staging);

  const SlotPlane& recurrent(int64_t layer) const { return recurrent_[at(layer)].host; }
  /// Without data when the layer has no window.
  const SlotPlane& window(int64_t layer) const { return window_[at(layer)].host; }

  /// The slot's bytes into the host's planes; waits for the stream. No-op on the CPU.
  Status download() const;
  /// The host's planes into the slot, queued on the stream. No-op on the CPU.
  Status upload() const;

 private:
  struct Plane {
    SlotPlane host;
    SlotPlane pool;
  };
  static size_t at(int64_t layer) { return static_cast<size_t>(layer); }
  Plane place(const TensorView& plane, int32_t slot, char*& free) const;
  Status copy(const Plane& plane, bool to_host) const;

  Device device_{};
  void* stream_ = nullptr;
  std::vector<Plane> recurrent_;
  std::vector<Plane> window_;
};

}  // namespace linestate
