#include "base/device_status.h"
#include "cpu/parallel_for.h"
#include "ops/causal_conv1d/conv_check.h"
#include "ops/causal_conv1d/conv_row_ref.h"
#include "ops/causal_conv1d/update/causal_conv1d_update_kernels.h"

namespace linestate {

Status causal_conv1d_update_ref(const CausalConv1dParams& params, const ExecContext& context) {
  const int64_t num_rows = params.rows.slot.shape[0];
  parallel_for(context, num_rows, [&](int64_t n, int) {
    const RowInfo row = read_decode_row(params.rows, n, params.window.shape[0]);
    conv_row_ref(params, row, conv_snapshots(params, n, row));
  });
  raise_decode_snapshots_not_taken(params.snapshots, params.rows, params.window.shape[0],
                                   context.status);
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
