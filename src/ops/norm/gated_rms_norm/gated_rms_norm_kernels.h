// Kernels of gated_rms_norm. Adding one: declare its run function, list it in the table.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/norm.h"

namespace linestate {

Status gated_rms_norm_cuda(const GatedRmsNormParams& params, const ExecContext& context);
Status gated_rms_norm_cpu(const GatedRmsNormParams& params, const ExecContext& context);
Status gated_rms_norm_ref(const GatedRmsNormParams& params, const ExecContext& context);

const OpTable<GatedRmsNormParams>& gated_rms_norm_table();

}  // namespace linestate
