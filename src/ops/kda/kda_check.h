// The contract of include/linestate/ops/kda.h, checked the same way for every row of every phase.
#pragma once

#include "linestate/exec_context.h"
#include "linestate/ops/kda.h"
#include "linestate/status.h"

namespace linestate {

/// Everything but the row tensors.
Status check_kda_tensors(const KdaParams& params, const ExecContext& context);
Status check_kda_prefill(const KdaParams& params, const ExecContext& context);
Status check_kda_decode(const KdaParams& params, const ExecContext& context);

}  // namespace linestate
