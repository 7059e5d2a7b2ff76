// The deferred slot work of a batch in two halves: everything that can fail, then the writes.
#pragma once

#include <cstdint>
#include <vector>

#include "linestate/forward_batch.h"

namespace linestate {

class SlotWork {
 public:
  /// REQUIRES: check_batch passed. Errors: of the packs, as unpack_slot, with the restore's index.
  static Result<SlotWork> plan(const ForwardBatch& batch, const StatePool& pool);

  /// Settles replay rings, clears, copies, restores. Fails before the first write or not at all.
  Status run(const StatePool& pool, const ExecContext& context) const;

 private:
  Status plan_restores(const ForwardBatch& batch, const StatePool& pool);
  void plan_rings(const ForwardBatch& batch, int64_t num_slots);
  Status settle_rings(const StatePool& pool, const ExecContext& context) const;

  DeferredSlotWork work_;                 // in pool slots
  std::vector<ConstTensorView> sources_;  // planes of the pool, when there are copies
  std::vector<SlotUnpack> unpacks_;       // of work_.restore
  std::vector<int32_t> read_;             // slots whose state something else than decode will read
  std::vector<int32_t> replaced_;         // slots whose state is about to be replaced
};

}  // namespace linestate
