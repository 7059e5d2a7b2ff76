// One token of one head in f32: each row of S is decayed, updated, used for the output and stored
// in one pass. Decode is this; the replay ring with nothing pending is this too.
#pragma once

#include <cstdint>

#include "base/row_access.h"
#include "cpu/scratch.h"
#include "linestate/exec_context.h"
#include "linestate/ops/lightning.h"

namespace linestate {

/// Scratch of one thread.
int64_t lightning_step_scratch_bytes();

/// Row n: output, snapshot where the plan wants one, state; what the row contract says without a
/// valid token.
void lightning_step_cpu(const LightningParams& params, const ExecContext& context,
                        const RowInfo& row, int64_t n, int64_t head, Scratch scratch);

}  // namespace linestate
