// The deferred slot work of a batch in two halves: everything that can fail, then the writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "linestate/forward_batch.h"

namespace linestate {

class SlotWork {
 public:
  /// REQUIRES: check_batch passed. Errors: of the packs, as unpack_slot, with the restore's index.
  /// Restores into a pool on a device are queued on `stream`.
  static Result<SlotWork> plan(const ForwardBatch& batch, const StatePool& pool, void* stream);
  /// Most slot ids that a batch of this capacity has.
  static int64_t most_ids(const ForwardCapacity& capacity);

  /// The ids that operators read, for run(): written once to where the pool's device can read them.
  int64_t num_ids() const;
  void write_ids(int32_t* to) const;

  /// Settles replay rings, clears, copies, restores. `ids`: what write_ids wrote, on the pool's
  /// device. On the CPU it fails before the first write or not at all. With restores into a pool on
  /// a device it waits for the stream.
  Status run(const StatePool& pool, const ExecContext& context, const int32_t* ids) const;

 private:
  Status plan_restores(const ForwardBatch& batch, const StatePool& pool, void* stream);
  void plan_rings(const ForwardBatch& batch, int64_t num_slots);

  DeferredSlotWork work_;                 // in pool slots
  std::vector<ConstTensorView> sources_;  // planes of the pool, when there are copies
  std::vector<SlotUnpack> unpacks_;       // of work_.restore
  std::vector<std::byte> staging_;        // one slot of a device, which each restore goes through
  std::vector<int32_t> read_;             // slots whose state something else than decode will read
  std::vector<int32_t> replaced_;         // slots whose state is about to be replaced
};

}  // namespace linestate
