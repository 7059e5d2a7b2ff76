// Kernels of state_copy. Adding one: declare its run function, list it in the table.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/state_ops.h"

namespace linestate {

Status state_copy_cuda(const StateCopyParams& params, const ExecContext& context);
Status state_copy_cpu(const StateCopyParams& params, const ExecContext& context);
Status state_copy_ref(const StateCopyParams& params, const ExecContext& context);

const OpTable<StateCopyParams>& state_copy_table();

}  // namespace linestate
