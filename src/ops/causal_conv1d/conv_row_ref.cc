#include "ops/causal_conv1d/conv_row_ref.h"

#include <cmath>

#include "ops/causal_conv1d/conv_snapshot.h"
#include "ops/common/conv_window.h"

namespace linestate {
namespace {

// x_i of the row; i < 0 reaches into the past.
double input(const CausalConv1dParams& params, const RowInfo& row, int64_t i, int64_t c) {
  if (i >= 0) {
    return load_f32(params.x.data, params.x.dtype, offset_of(params.x, row.token_begin + i, c));
  }
  if (row.fresh) return 0.0;
  const int64_t j = params.window.shape[2] + i;
  return load_f32(params.window.data, params.window.dtype,
                  offset_of(params.window, row.slot, c, j));
}

}  // namespace

double conv_output_ref(const CausalConv1dParams& params, const RowInfo& row,
                       const ConvTapsRef& taps, int64_t c) {
  const int64_t W = params.weight.shape[1];
  double y = 0.0;
  if (params.bias.defined()) {
    y = load_f32(params.bias.data, params.bias.dtype, offset_of(params.bias, c));
  }
  for (int64_t j = 0; j < W; ++j) {
    const double w =
        load_f32(params.weight.data, params.weight.dtype, offset_of(params.weight, c, j));
    y += w * input(params, row, taps[static_cast<size_t>(j)], c);
  }
  return params.activation == Activation::kSilu ? y / (1.0 + std::exp(-y)) : y;
}

void conv_row_ref(const CausalConv1dParams& params, const RowInfo& row,
                  const RowSnapshots& snapshots) {
  const int64_t channels = params.x.shape[1];
  const int64_t W = params.weight.shape[1];
  for (int64_t i = 0; i < row.tokens; ++i) {
    ConvTapsRef taps{};
    for (int64_t j = 0; j < W; ++j) taps[static_cast<size_t>(j)] = i - W + 1 + j;
    for (int64_t c = 0; c < channels; ++c) {
      const double y = i < row.valid ? conv_output_ref(params, row, taps, c) : 0.0;
      store_f32(params.out.data, params.out.dtype, offset_of(params.out, row.token_begin + i, c),
                static_cast<float>(y));
    }
  }
  if (!row.live) return;
  snapshot_windows(params, row, snapshots, {0, channels});
  advance_window(params.window, row.slot, row.fresh, params.x, row.valid, {0, channels},
                 [&](int64_t i) { return row.token_begin + i; });
}

}  // namespace linestate
