// Kernels of causal_conv1d_update. Adding one: declare its run function, list it here.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/causal_conv1d.h"

namespace linestate {

Status causal_conv1d_update_cuda(const CausalConv1dParams& params, const ExecContext& context);
Status causal_conv1d_update_cpu(const CausalConv1dParams& params, const ExecContext& context);
Status causal_conv1d_update_ref(const CausalConv1dParams& params, const ExecContext& context);

const OpTable<CausalConv1dParams>& causal_conv1d_update_table();

}  // namespace linestate
