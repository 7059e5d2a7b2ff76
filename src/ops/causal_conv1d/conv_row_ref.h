// One row of the convolution in double precision, straight from the definition.
#pragma once

#include "base/row_access.h"
#include "linestate/ops/causal_conv1d.h"

namespace linestate {

/// Outputs of all tokens of the row (zeros behind `valid`), then the row's new window.
void conv_row_ref(const CausalConv1dParams& params, const RowInfo& row);

}  // namespace linestate
