#include "base/device_status.h"
#include "cpu/parallel_for.h"
#include "ops/causal_conv1d/conv_block_cpu.h"
#include "ops/causal_conv1d/conv_check.h"
#include "ops/causal_conv1d/prefill/causal_conv1d_prefill_kernels.h"

namespace linestate {

Status causal_conv1d_prefill_cpu(const CausalConv1dParams& params, const ExecContext& context) {
  const int64_t num_rows = params.rows.slot.shape[0];
  const int64_t blocks = ConvBlock::blocks(params);
  parallel_for(context, (num_rows + 1) * blocks, [&](int64_t task, int) {
    const int64_t n = task / blocks;
    ConvBlock block(params, task % blocks);
    const RowInfo row = n < num_rows ? read_prefill_row(params.rows, n, params.window.shape[0])
                                     : conv_tail_row(params);
    block.run_row(row, conv_snapshots(params, n, row));
  });
  raise_prefill_snapshots_not_taken(params.snapshots, params.rows, params.window.shape[0],
                                    context.status);
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
