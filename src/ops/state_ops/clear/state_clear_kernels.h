// Kernels of state_clear. Adding one: declare its run function, list it in the table.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/state_ops.h"

namespace linestate {

Status state_clear_cuda(const StateClearParams& params, const ExecContext& context);
Status state_clear_cpu(const StateClearParams& params, const ExecContext& context);
Status state_clear_ref(const StateClearParams& params, const ExecContext& context);

const OpTable<StateClearParams>& state_clear_table();

}  // namespace linestate
