#include "base/device_status.h"
#include "cpu/parallel_for.h"
#include "ops/causal_conv1d/conv_block_cpu.h"
#include "ops/causal_conv1d/conv_check.h"
#include "ops/causal_conv1d/verify/causal_conv1d_verify_kernels.h"

namespace linestate {

Status causal_conv1d_verify_cpu(const CausalConv1dVerifyParams& params,
                                const ExecContext& context) {
  const CausalConv1dParams& conv = params.conv;
  const int64_t num_rows = conv.rows.slot.shape[0];
  const int64_t blocks = ConvBlock::blocks(conv);
  parallel_for(context, (num_rows + 1) * blocks, [&](int64_t task, int) {
    const int64_t n = task / blocks;
    ConvBlock block(conv, task % blocks);
    block.run_drafts(
        n < num_rows ? read_prefill_row(conv.rows, n, conv.window.shape[0]) : conv_tail_row(conv),
        params.parent);
  });
  raise_if_not_finite(context, conv.out);
  return {};
}

}  // namespace linestate
