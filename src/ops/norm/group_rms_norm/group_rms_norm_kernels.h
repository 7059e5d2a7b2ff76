// Kernels of group_rms_norm. Adding one: declare its run function, list it in the table.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/norm.h"

namespace linestate {

Status group_rms_norm_cuda(const GroupRmsNormParams& params, const ExecContext& context);
Status group_rms_norm_cpu(const GroupRmsNormParams& params, const ExecContext& context);
Status group_rms_norm_ref(const GroupRmsNormParams& params, const ExecContext& context);

const OpTable<GroupRmsNormParams>& group_rms_norm_table();

}  // namespace linestate
