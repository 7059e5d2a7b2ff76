// Lightning attention in float64, one token at a time, as the paper writes it:
//   S <- lambda * S + k v^T,   o = scale * S^T q,   lambda = exp(-slope).
// S is rounded to f32 after every token, so that where a call ends cannot be seen in the numbers.
#pragma once

#include <cstdint>

#include "base/row_access.h"
#include "cpu/scratch.h"
#include "linestate/exec_context.h"
#include "linestate/ops/lightning.h"

namespace linestate {

/// Scratch of one thread for heads of dimension `dim`.
int64_t lightning_ref_scratch_bytes(int64_t dim);

/// One head of one row: its valid tokens, the final state, zero output for the rest.
void lightning_ref_head(const LightningParams& params, const ExecContext& context,
                        const RowInfo& row, int64_t row_index, int64_t head, Scratch scratch);

}  // namespace linestate
