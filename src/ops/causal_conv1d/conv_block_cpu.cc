#include "ops/causal_conv1d/conv_block_cpu.h"

#include <cmath>

#include "base/int_math.h"
#include "ops/causal_conv1d/conv_snapshot.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/causal_conv1d/conv_block_cpu.cc"
#include <hwy/foreach_target.h>

#include "cpu/simd_math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

// y = bias + sum_j w[j] * x[j], j upwards, then y * sigmoid(y) when asked. Planes hold whole
// vectors: what is computed behind n is never stored.
template <int W, bool kSilu>
HWY_INLINE void convolve_lanes(const float* const* w, const float* const* x, const float* bias,
                               int64_t n, float* HWY_RESTRICT y) {
  for (int64_t c = 0; c < n; c += kVecLanes) {
    Vec sum = vec_load(bias + c);
    for (int j = 0; j < W; ++j) sum = hn::MulAdd(vec_load(w[j] + c), vec_load(x[j] + c), sum);
    vec_store(y + c, kSilu ? hn::Mul(sum, vec_sigmoid(sum)) : sum);
  }
}

template <int W>
HWY_INLINE void convolve_width(const float* const* w, const float* const* x, const float* bias,
                               bool silu, int64_t n, float* y) {
  if (silu) return convolve_lanes<W, true>(w, x, bias, n, y);
  convolve_lanes<W, false>(w, x, bias, n, y);
}

void convolve(const float* const* w, const float* const* x, const float* bias, int64_t width,
              bool silu, int64_t n, float* y) {
  if (width == 4) return convolve_width<4>(w, x, bias, silu, n, y);
  if (width == 3) return convolve_width<3>(w, x, bias, silu, n, y);
  convolve_width<2>(w, x, bias, silu, n, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(convolve);

namespace {

// How far f32 may be from the exact result, per channel: W + 1 roundings of the sum, whose partial
// sums are at most |bias| + sum |w x|, and 4 ulp of SiLU. 2^-20 is 16 half-ulps.
template <int W>
inline void margin_body(const float* const* w, const float* const* x, const float* bias, int64_t n,
                        float* __restrict__ margin) {
  for (int64_t c = 0; c < n; ++c) {
    float sum = std::fabs(bias[c]);
    for (int j = 0; j < W; ++j) sum += std::fabs(w[j][c] * x[j][c]);
    margin[c] = sum * 0x1p-20f;
  }
}

void margin_of(int64_t width, const float* const* w, const float* const* x, const float* bias,
               int64_t n, float* margin) {
  if (width == 4) return margin_body<4>(w, x, bias, n, margin);
  if (width == 3) return margin_body<3>(w, x, bias, n, margin);
  return margin_body<2>(w, x, bias, n, margin);
}

float convolve_exactly(int64_t width, Activation activation, const float* const* w,
                       const float* const* x, float bias, int64_t c) {
  double sum = bias;
  for (int64_t j = 0; j < width; ++j) sum += static_cast<double>(w[j][c]) * x[j][c];
  return static_cast<float>(activation == Activation::kSilu ? sum / (1.0 + std::exp(-sum)) : sum);
}

// True when every value within `margin` of `y` rounds to the same 16-bit number.
inline bool rounding_is_certain(DType dtype, float y, float margin) {
  if (dtype == DType::kBF16) return f32_to_bf16(y - margin) == f32_to_bf16(y + margin);
  return f32_to_f16(y - margin) == f32_to_f16(y + margin);
}

}  // namespace

int64_t ConvBlock::blocks(const CausalConv1dParams& params) {
  return ceil_div(params.x.shape[1], kChannels);
}

ConvBlock::ConvBlock(const CausalConv1dParams& params, int64_t index)
    : params_(params),
      channels_{index * kChannels, min_i64((index + 1) * kChannels, params.x.shape[1])},
      width_(params.weight.shape[1]) {
  const int64_t n = channels_.size();
  for (int64_t j = 0; j < width_; ++j) {
    load_run(params.weight.data, params.weight.dtype, offset_of(params.weight, channels_.begin, j),
             params.weight.stride[0], n, weight_[static_cast<size_t>(j)].data());
  }
  if (params.bias.defined()) {
    load_run(params.bias.data, params.bias.dtype, offset_of(params.bias, channels_.begin),
             params.bias.stride[0], n, bias_.data());
  } else {
    bias_.fill(0.0f);
  }
}

void ConvBlock::load_past(const RowInfo& row, int64_t column, Plane& plane) {
  if (row.fresh) {
    plane.fill(0.0f);
    return;
  }
  const TensorView& window = params_.window;
  load_run(window.data, window.dtype, offset_of(window, row.slot, channels_.begin, column),
           window.stride[1], channels_.size(), plane.data());
}

void ConvBlock::load_token(int64_t token, Plane& plane) {
  const ConstTensorView& x = params_.x;
  load_run(x.data, x.dtype, offset_of(x, token, channels_.begin), x.stride[1], channels_.size(),
           plane.data());
}

void ConvBlock::load_history(const RowInfo& row) {
  for (int64_t j = 0; j + 1 < width_; ++j) load_past(row, j, inputs_[static_cast<size_t>(j)]);
}

void ConvBlock::run_token(int64_t token, int64_t newest) {
  load_token(token, inputs_[static_cast<size_t>(newest)]);
  convolve_token(token, newest);
}

void ConvBlock::convolve_token(int64_t token, int64_t newest) {
  const int64_t n = channels_.size();
  const float* w[4];
  const float* in[4];
  for (int64_t j = 0; j < width_; ++j) {
    w[j] = weight_[static_cast<size_t>(j)].data();
    in[j] = inputs_[static_cast<size_t>((newest + 1 + j) % width_)].data();
  }
  HWY_DYNAMIC_DISPATCH(convolve)
  (w, in, bias_.data(), width_, params_.activation == Activation::kSilu, n, y_.data());
  const TensorView& out = params_.out;
  if (out.dtype != DType::kF32) round_like_exact(w, in);
  store_run(out.data, out.dtype, offset_of(out, token, channels_.begin), out.stride[1], n,
            y_.data());
}

// A 16-bit output is the rounding of the exact value, whatever kernel made it: where the f32 result
// is too near a rounding border to tell, the sum is made again in f64. Few elements are, and
// without it the state behind a layer would depend on the last bit of an f32 sum.
void ConvBlock::round_like_exact(const float* const* w, const float* const* in) {
  const int64_t n = channels_.size();
  Plane margin;
  margin_of(width_, w, in, bias_.data(), n, margin.data());
  for (int64_t c = 0; c < n; ++c) {
    const auto at = static_cast<size_t>(c);
    if (rounding_is_certain(params_.out.dtype, y_[at], margin[at])) continue;
    y_[at] = convolve_exactly(width_, params_.activation, w, in, bias_[at], c);
  }
}

void ConvBlock::zero_token(int64_t token) {
  const TensorView& out = params_.out;
  zero_run({out.data, out.dtype, offset_of(out, token, channels_.begin), out.stride[1]},
           channels_.size());
}

void ConvBlock::run_row(const RowInfo& row, const RowSnapshots& snapshots) {
  if (row.valid > 0) load_history(row);
  int64_t newest = width_ - 1;  // ring place of the next input
  for (int64_t i = 0; i < row.valid; ++i) {
    run_token(row.token_begin + i, newest);
    newest = newest + 1 == width_ ? 0 : newest + 1;
  }
  for (int64_t i = row.valid; i < row.tokens; ++i) zero_token(row.token_begin + i);
  if (!row.live) return;
  snapshot_windows(params_, row, snapshots, channels_);
  advance_window(params_.window, row.slot, row.fresh, params_.x, row.valid, channels_,
                 [&](int64_t i) { return row.token_begin + i; });
}

void ConvBlock::run_node(const RowInfo& row, const DraftTree& tree, int64_t node) {
  int64_t at = node;  // an ancestor, or behind the root -1, -2, ... for the window's columns
  for (int64_t j = width_ - 1; j >= 0; --j) {
    Plane& plane = inputs_[static_cast<size_t>(j)];
    if (at >= 0) {
      load_token(row.token_begin + at, plane);
      at = tree.parent_of(at);
    } else {
      load_past(row, width_ - 1 + at, plane);
      --at;
    }
  }
  convolve_token(row.token_begin + node, width_ - 1);
}

void ConvBlock::run_drafts(const RowInfo& row, const ConstTensorView& parent) {
  const DraftTree tree(parent, row);
  for (int64_t node = 0; node < row.tokens; ++node) {
    if (node < row.valid && !tree.inert(node)) {
      run_node(row, tree, node);
    } else {
      zero_token(row.token_begin + node);
    }
  }
}

}  // namespace linestate
#endif
