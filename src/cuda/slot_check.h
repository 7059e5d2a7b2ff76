// kDuplicateSlot for ids that only the device knows. On a CPU operators refuse such a batch; a
// kernel cannot, and two rows of one slot would race.
#pragma once

#include "linestate/exec_context.h"
#include "linestate/rows.h"
#include "linestate/status.h"

namespace linestate {

/// Slots that a call writes.
struct WrittenSlots {
  ConstTensorView slot;    // [N] of the rows
  ConstTensorView target;  // [M] of snapshots; undefined = none
  int64_t num_slots = 0;   // P; ids outside [0, P) are nobody's
};

/// Starts the check when the context has a status block and slots_checked is not set. The row
/// reported is the later one of two rows that share a slot, or N + m for target m that is a row's
/// slot or an earlier target. One launch; compares every id with those before it.
Status raise_if_slots_shared_cuda(const ExecContext& context, const WrittenSlots& slots);

}  // namespace linestate
