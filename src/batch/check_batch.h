// The rules a ForwardBatch must keep, checked on the host before anything happens.
#pragma once

#include <cstdint>

#include "linestate/forward_batch.h"
#include "linestate/status.h"

namespace linestate {

/// The pool slot that `id` of the batch names: the id itself without a slot table, kPadSlot for an
/// id that the table does not lead into [0, num_slots). REQUIRES: the table passed check_batch.
int32_t physical_slot(const ForwardBatch& batch, int32_t id, int64_t num_slots);
/// batch.pre in pool slots. REQUIRES: check_batch passed.
DeferredSlotWork physical_work(const ForwardBatch& batch, int64_t num_slots);

/// Everything ForwardMetadata::prepare promises to refuse, but for the packs of pre.restore.
/// Messages name the row and the field.
Status check_batch(const ForwardBatch& batch, const ForwardCapacity& capacity, int64_t num_slots);

}  // namespace linestate
