// What every phase of the convolution shares of its contract.
#pragma once

#include "base/row_access.h"
#include "linestate/ops/causal_conv1d.h"
#include "ops/common/snapshot_access.h"

namespace linestate {

/// Shapes, dtypes, placement and aliasing of x, weight, bias, window and out; not the rows.
Status check_conv_tensors(const CausalConv1dParams& params, const ExecContext& context);

/// The tokens behind the last row of a prefill call, as one more padding row.
inline RowInfo conv_tail_row(const CausalConv1dParams& params) {
  RowInfo row;
  row.token_begin = end_of_rows(params.rows);
  row.tokens = params.x.shape[0] - row.token_begin;
  return row;
}

/// The snapshots wanted of row n. `row` must outlive the result.
inline RowSnapshots conv_snapshots(const CausalConv1dParams& params, int64_t n,
                                   const RowInfo& row) {
  return {params.snapshots, n, row, params.window.shape[0], row.valid};
}

}  // namespace linestate
