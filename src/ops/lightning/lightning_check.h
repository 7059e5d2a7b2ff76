// The contract of the Lightning operators, the same for every kernel.
#pragma once

#include "linestate/exec_context.h"
#include "linestate/ops/lightning.h"
#include "linestate/ops/lightning_verify.h"
#include "linestate/ops/replay_ring.h"
#include "linestate/status.h"

namespace linestate {

Status check_lightning_prefill(const LightningParams& params, const ExecContext& context);
Status check_lightning_decode(const LightningParams& params, const ExecContext& context);
Status check_lightning_verify(const LightningVerifyParams& params, const ExecContext& context);
Status check_lightning_commit(const LightningCommitParams& params, const ExecContext& context);
Status check_lightning_replay(const LightningReplayParams& params, const ExecContext& context);

/// Shapes, dtypes, placement and aliasing of inputs, state and output; not the rows.
Status check_lightning_tensors(const LightningParams& params, const ExecContext& context);
/// [heads] f32, finite and >= 0.
Status check_lightning_slopes(const ConstTensorView& slopes, int64_t heads,
                              const ExecContext& context);

}  // namespace linestate
