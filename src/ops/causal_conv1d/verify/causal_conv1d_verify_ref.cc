#include "base/device_status.h"
#include "cpu/parallel_for.h"
#include "ops/causal_conv1d/conv_check.h"
#include "ops/causal_conv1d/conv_row_ref.h"
#include "ops/causal_conv1d/verify/causal_conv1d_verify_kernels.h"
#include "ops/draft_tree/draft_path.h"

namespace linestate {
namespace {

// The W newest inputs on the way from the committed past over the root to the node.
ConvTapsRef taps_of(const DraftTree& tree, int64_t node, int64_t W) {
  ConvTapsRef taps{};
  int64_t at = node;
  for (int64_t j = W - 1; j >= 0; --j) {
    taps[static_cast<size_t>(j)] = at;
    at = at >= 0 ? tree.parent_of(at) : at - 1;
  }
  return taps;
}

void verify_row(const CausalConv1dVerifyParams& params, const RowInfo& row) {
  const CausalConv1dParams& conv = params.conv;
  const DraftTree tree(params.parent, row);
  for (int64_t i = 0; i < row.tokens; ++i) {
    const bool named = i < row.valid && !tree.inert(i);
    const ConvTapsRef taps = named ? taps_of(tree, i, conv.weight.shape[1]) : ConvTapsRef{};
    for (int64_t c = 0; c < conv.x.shape[1]; ++c) {
      const double y = named ? conv_output_ref(conv, row, taps, c) : 0.0;
      store_f32(conv.out.data, conv.out.dtype, offset_of(conv.out, row.token_begin + i, c),
                static_cast<float>(y));
    }
  }
}

}  // namespace

Status causal_conv1d_verify_ref(const CausalConv1dVerifyParams& params,
                                const ExecContext& context) {
  const CausalConv1dParams& conv = params.conv;
  const int64_t num_rows = conv.rows.slot.shape[0];
  parallel_for(context, num_rows, [&](int64_t n, int) {
    verify_row(params, read_prefill_row(conv.rows, n, conv.window.shape[0]));
  });
  verify_row(params, conv_tail_row(conv));
  raise_if_not_finite(context, conv.out);
  return {};
}

}  // namespace linestate
