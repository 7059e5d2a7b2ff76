#include "base/device_status.h"
#include "base/int_math.h"
#include "cpu/parallel_for.h"
#include "ops/causal_conv1d/conv_block_cpu.h"
#include "ops/causal_conv1d/conv_check.h"
#include "ops/causal_conv1d/update/causal_conv1d_update_kernels.h"

namespace linestate {

Status causal_conv1d_update_cpu(const CausalConv1dParams& params, const ExecContext& context) {
  // One load of the weights serves a group of rows.
  constexpr int64_t kRowsPerTask = 16;
  const int64_t num_rows = params.rows.slot.shape[0];
  const int64_t blocks = ConvBlock::blocks(params);
  const int64_t tasks = ceil_div(num_rows, kRowsPerTask) * blocks;
  const int64_t elements = 4 * params.x.num_elements();  // W products each
  parallel_for(threads_for(context, elements), tasks, [&](int64_t task, int) {
    const int64_t begin = task / blocks * kRowsPerTask;
    const int64_t end = min_i64(begin + kRowsPerTask, num_rows);
    ConvBlock block(params, task % blocks);
    for (int64_t n = begin; n < end; ++n) {
      const RowInfo row = read_decode_row(params.rows, n, params.window.shape[0]);
      block.run_row(row, conv_snapshots(params, n, row));
    }
  });
  raise_decode_snapshots_not_taken(params.snapshots, params.rows, params.window.shape[0],
                                   context.status);
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
