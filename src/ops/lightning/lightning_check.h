// The contract of the two Lightning operators, the same for every kernel.
#pragma once

#include "linestate/exec_context.h"
#include "linestate/ops/lightning.h"
#include "linestate/status.h"

namespace linestate {

Status check_lightning_prefill(const LightningParams& params, const ExecContext& context);
Status check_lightning_decode(const LightningParams& params, const ExecContext& context);

}  // namespace linestate
