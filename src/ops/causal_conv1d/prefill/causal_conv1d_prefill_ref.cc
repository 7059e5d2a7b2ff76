#include "base/device_status.h"
#include "cpu/parallel_for.h"
#include "ops/causal_conv1d/conv_check.h"
#include "ops/causal_conv1d/conv_row_ref.h"
#include "ops/causal_conv1d/prefill/causal_conv1d_prefill_kernels.h"

namespace linestate {

Status causal_conv1d_prefill_ref(const CausalConv1dParams& params, const ExecContext& context) {
  const int64_t num_rows = params.rows.slot.shape[0];
  parallel_for(context, num_rows, [&](int64_t n, int) {
    const RowInfo row = read_prefill_row(params.rows, n, params.window.shape[0]);
    conv_row_ref(params, row, conv_snapshots(params, n, row));
  });
  const RowInfo tail = conv_tail_row(params);
  conv_row_ref(params, tail, conv_snapshots(params, num_rows, tail));
  raise_prefill_snapshots_not_taken(params.snapshots, params.rows, params.window.shape[0],
                                    context.status);
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
