// kNonFinite for outputs on a CUDA device.
#pragma once

#include "linestate/exec_context.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate {

/// Starts the check of `out` [T, ...] when the context asks for it and has a status block; the row
/// reported is the first token that holds NaN or infinity. REQUIRES: the device is current.
Status raise_if_not_finite_cuda(const ExecContext& context, const ConstTensorView& out);

}  // namespace linestate
