// One row of the convolution in double precision, straight from the definition.
#pragma once

#include <array>

#include "base/row_access.h"
#include "linestate/ops/causal_conv1d.h"
#include "ops/common/snapshot_access.h"

namespace linestate {

/// Which inputs a token sees, oldest first, the first W used: i >= 0 is the row's token i, -1 the
/// last input before the row, -2 the one before that.
using ConvTapsRef = std::array<int64_t, 4>;

/// The output of one token and channel.
double conv_output_ref(const CausalConv1dParams& params, const RowInfo& row,
                       const ConvTapsRef& taps, int64_t channel);

/// Outputs of all tokens of the row (zeros behind `valid`), the snapshots wanted of it, then its
/// new window.
void conv_row_ref(const CausalConv1dParams& params, const RowInfo& row,
                  const RowSnapshots& snapshots);

}  // namespace linestate
