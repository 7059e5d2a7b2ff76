#include "ops/causal_conv1d/conv_block_cpu.h"

#include "base/int_math.h"
#include "cpu/avx2.h"
#include "cpu/lanewise_math.h"

namespace linestate {
namespace {

// y = bias + sum_j w[j] * x[j], j upwards, then y * sigmoid(y) when asked.
template <int W, bool kSilu>
LINESTATE_INLINE void convolve_body(const float* const* w, const float* const* x, const float* bias,
                                    int64_t n, float* __restrict__ y) {
  for (int64_t c = 0; c < n; ++c) {
    float sum = bias[c];
    for (int j = 0; j < W; ++j) sum += w[j][c] * x[j][c];
    y[c] = kSilu ? sum * lanewise_sigmoid(sum) : sum;
  }
}

template <int W, bool kSilu>
LINESTATE_AVX2 void convolve_avx2(const float* const* w, const float* const* x, const float* bias,
                                  int64_t n, float* y) {
  convolve_body<W, kSilu>(w, x, bias, n, y);
}

template <int W, bool kSilu>
void convolve(const float* const* w, const float* const* x, const float* bias, int64_t n,
              float* y) {
  if (cpu_has_avx2()) {
    convolve_avx2<W, kSilu>(w, x, bias, n, y);
  } else {
    convolve_body<W, kSilu>(w, x, bias, n, y);
  }
}

using Convolve = void (*)(const float* const*, const float* const*, const float*, int64_t, float*);

Convolve convolve_of(int64_t width, Activation activation) {
  const bool silu = activation == Activation::kSilu;
  if (width == 4) return silu ? convolve<4, true> : convolve<4, false>;
  if (width == 3) return silu ? convolve<3, true> : convolve<3, false>;
  return silu ? convolve<2, true> : convolve<2, false>;
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

void ConvBlock::load_history(const RowInfo& row) {
  const TensorView& window = params_.window;
  for (int64_t j = 0; j + 1 < width_; ++j) {
    Plane& plane = inputs_[static_cast<size_t>(j)];
    if (row.fresh) {
      plane.fill(0.0f);
      continue;
    }
    load_run(window.data, window.dtype, offset_of(window, row.slot, channels_.begin, j),
             window.stride[1], channels_.size(), plane.data());
  }
}

void ConvBlock::run_token(int64_t token, int64_t newest) {
  const int64_t n = channels_.size();
  const ConstTensorView& x = params_.x;
  load_run(x.data, x.dtype, offset_of(x, token, channels_.begin), x.stride[1], n,
           inputs_[static_cast<size_t>(newest)].data());
  const float* w[4];
  const float* in[4];
  for (int64_t j = 0; j < width_; ++j) {
    w[j] = weight_[static_cast<size_t>(j)].data();
    in[j] = inputs_[static_cast<size_t>((newest + 1 + j) % width_)].data();
  }
  convolve_of(width_, params_.activation)(w, in, bias_.data(), n, y_.data());
  const TensorView& out = params_.out;
  store_run(out.data, out.dtype, offset_of(out, token, channels_.begin), out.stride[1], n,
            y_.data());
}

void ConvBlock::zero_token(int64_t token) {
  const TensorView& out = params_.out;
  zero_run({out.data, out.dtype, offset_of(out, token, channels_.begin), out.stride[1]},
           channels_.size());
}

void ConvBlock::run_row(const RowInfo& row) {
  if (row.valid > 0) load_history(row);
  int64_t newest = width_ - 1;  // ring place of the next input
  for (int64_t i = 0; i < row.valid; ++i) {
    run_token(row.token_begin + i, newest);
    newest = newest + 1 == width_ ? 0 : newest + 1;
  }
  for (int64_t i = row.valid; i < row.tokens; ++i) zero_token(row.token_begin + i);
  if (!row.live) return;
  advance_window(params_.window, row.slot, row.fresh, params_.x, row.valid, channels_,
                 [&](int64_t i) { return row.token_begin + i; });
}

}  // namespace linestate
