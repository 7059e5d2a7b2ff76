// Checks that the norms share.
#pragma once

#include "base/check.h"
#include "linestate/exec_context.h"
#include "linestate/tensor.h"

namespace linestate {

/// eps > 0 and finite.
Status check_eps(float eps);

/// A compute-dtype input of the given shape on the context's device.
Status check_norm_input(const char* name, const ConstTensorView& tensor,
                        std::initializer_list<int64_t> shape, const ExecContext& context);

/// `out` has the shape of `x`; it is x itself (same memory, dtype and strides) or apart from it.
Status check_norm_out(const ConstTensorView& out, const ConstTensorView& x,
                      const ExecContext& context);

}  // namespace linestate
