// Moving one value head of one row between the pool, the outputs and f32 scratch. No maths.
#pragma once

#include <cstdint>

#include "base/row_access.h"
#include "linestate/exec_context.h"
#include "linestate/ops/kda.h"

namespace linestate {

/// S of value head `head` as f32 [V, K]; zeros for a fresh row, whatever the slot holds.
void load_kda_state(const TensorView& state, const RowInfo& row, int64_t head, float* S);
/// Rounds S into a slot of the pool. False when a finite value became infinite in the pool's dtype
/// (the caller reports it).
bool store_kda_slot(const TensorView& state, int64_t slot, int64_t head, const float* S);
/// store_kda_slot into the row's slot; reports an overflow for row `n`.
void store_kda_state(const KdaParams& params, const ExecContext& context, const RowInfo& row,
                     int64_t n, int64_t head, const float* S);
/// Bits of one slot's head into another slot.
void copy_kda_slot(const TensorView& state, int64_t from, int64_t to, int64_t head);
/// A fresh row without tokens: the head's state becomes zero.
void clear_kda_state(const TensorView& state, const RowInfo& row, int64_t head);
/// Zero output of one value head for tokens [begin, end).
void clear_kda_out(const KdaParams& params, int64_t begin, int64_t end, int64_t head);

}  // namespace linestate
