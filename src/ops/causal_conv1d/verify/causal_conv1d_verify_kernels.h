// Kernels of causal_conv1d_verify. Adding one: declare its run function, list it here.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/kda_verify.h"

namespace linestate {

Status causal_conv1d_verify_cuda(const CausalConv1dVerifyParams& params,
                                 const ExecContext& context);
Status causal_conv1d_verify_cpu(const CausalConv1dVerifyParams& params, const ExecContext& context);
Status causal_conv1d_verify_ref(const CausalConv1dVerifyParams& params, const ExecContext& context);

const OpTable<CausalConv1dVerifyParams>& causal_conv1d_verify_table();

}  // namespace linestate
