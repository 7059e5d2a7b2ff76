// Kernels of rms_sum_sq. Adding one: declare its run function, list it in the table.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/norm.h"

namespace linestate {

Status rms_sum_sq_cuda(const RmsSumSqParams& params, const ExecContext& context);
Status rms_sum_sq_cpu(const RmsSumSqParams& params, const ExecContext& context);
Status rms_sum_sq_ref(const RmsSumSqParams& params, const ExecContext& context);

const OpTable<RmsSumSqParams>& rms_sum_sq_table();

}  // namespace linestate
