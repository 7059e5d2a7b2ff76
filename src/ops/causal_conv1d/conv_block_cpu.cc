#include "ops/causal_conv1d/conv_block_cpu.h"

#include <cmath>

#include "base/int_math.h"
#include "ops/causal_conv1d/conv_snapshot.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/causal_conv1d/conv_block_cpu.cc"
#include <hwy/foreach_target.h>

#include "cpu/simd_math_inl.h"
#include "cpu/simd_run_inl.h"

#ifndef LINESTATE_CONV_BLOCK_ONCE
#define LINESTATE_CONV_BLOCK_ONCE
namespace linestate {

/// One token of a block of channels: planes of f32, oldest input first.
struct ConvToken {
  int64_t width;
  bool silu;
  int64_t n;
  const float* weight[4];
  const float* input[4];
  const float* bias;
  Run out;
};

// The sum again, for one channel whose rounding f32 cannot tell.
inline float convolve_exactly(const ConvToken& token, int64_t c) {
  double sum = token.bias[c];
  for (int64_t j = 0; j < token.width; ++j) {
    sum += static_cast<double>(token.weight[j][c]) * token.input[j][c];
  }
  return static_cast<float>(token.silu ? sum / (1.0 + std::exp(-sum)) : sum);
}

}  // namespace linestate
#endif

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

// Lanes where a and b round to the same bits.
HWY_INLINE VecMask rounds_alike(const hwy::bfloat16_t*, Vec a, Vec b) {
  const hn::RebindToUnsigned<Tag> d32;
  const auto half = hn::Set(d32, 0x7fffu);
  const auto one = hn::Set(d32, 1u);
  const auto a_bits = hn::BitCast(d32, a);
  const auto b_bits = hn::BitCast(d32, b);
  const auto a_odd = hn::And(hn::ShiftRight<16>(a_bits), one);
  const auto b_odd = hn::And(hn::ShiftRight<16>(b_bits), one);
  const auto a_high = hn::ShiftRight<16>(hn::Add(a_bits, hn::Add(a_odd, half)));
  const auto b_high = hn::ShiftRight<16>(hn::Add(b_bits, hn::Add(b_odd, half)));
  return hn::RebindMask(Tag(), hn::Eq(a_high, b_high));
}
HWY_INLINE VecMask rounds_alike(const hwy::float16_t*, Vec a, Vec b) {
  HWY_ALIGN hwy::float16_t a_half[kVecLanes];
  HWY_ALIGN hwy::float16_t b_half[kVecLanes];
  vec_store(a_half, a);
  vec_store(b_half, b);
  const hn::RebindToUnsigned<Tag> d32;  // by bits: -0 is not +0
  const auto a_bits = hn::BitCast(d32, vec_load(a_half));
  const auto b_bits = hn::BitCast(d32, vec_load(b_half));
  return hn::RebindMask(Tag(), hn::Eq(a_bits, b_bits));
}
HWY_INLINE VecMask rounds_alike(const float*, Vec a, Vec) { return hn::Eq(a, a); }

HWY_INLINE Vec exact_where(const ConvToken& token, int64_t c, VecMask certain, Vec y) {
  HWY_ALIGN float values[kVecLanes];
  HWY_ALIGN float keep[kVecLanes];
  hn::Store(y, Tag(), values);
  hn::Store(hn::IfThenElseZero(certain, vec_of(1.0f)), Tag(), keep);
  for (int l = 0; l < kVecLanes; ++l) {
    if (keep[l] == 0.0f) values[l] = convolve_exactly(token, c + l);
  }
  return hn::Load(Tag(), values);
}

// y = bias + sum_j w[j] * x[j], j upwards, then y * sigmoid(y) when asked. Planes hold whole
// vectors: what is computed behind n is never stored.
//
// A 16-bit output is the rounding of the exact value, whatever kernel made it: where the f32 result
// is too near a rounding border to tell, the sum is made again in f64. Few elements are, and
// without it the state behind a layer would depend on the last bit of an f32 sum. How far f32 may
// be from exact: W + 1 roundings of the sum, whose partial sums are at most |bias| + sum |w x|, and
// 4 ulp of SiLU. 2^-20 is 16 half-ulps.
template <int W, bool kSilu, typename T>
HWY_INLINE void convolve_lanes(const ConvToken& token, float* HWY_RESTRICT y) {
  for (int64_t c = 0; c < token.n; c += kVecLanes) {
    Vec sum = vec_load(token.bias + c);
    Vec size = hn::Abs(sum);
    for (int j = 0; j < W; ++j) {
      const Vec w = vec_load(token.weight[j] + c);
      const Vec x = vec_load(token.input[j] + c);
      size = hn::Add(size, hn::Abs(hn::Mul(w, x)));
      sum = hn::MulAdd(w, x, sum);
    }
    Vec value = kSilu ? hn::Mul(sum, vec_sigmoid(sum)) : sum;
    if constexpr (sizeof(T) == 2) {
      const Vec margin = hn::Mul(size, vec_of(0x1p-20f));
      const VecMask certain = rounds_alike(static_cast<const T*>(nullptr), hn::Sub(value, margin),
                                           hn::Add(value, margin));
      if (HWY_UNLIKELY(!hn::AllTrue(Tag(), certain))) {
        value = exact_where(token, c, certain, value);
      }
    }
    vec_store(y + c, value);
  }
}

template <typename T, int W>
HWY_INLINE void convolve_width(const ConvToken& token, float* y) {
  if (token.silu) return convolve_lanes<W, true, T>(token, y);
  convolve_lanes<W, false, T>(token, y);
}

template <typename T>
HWY_INLINE void convolve_as(const ConvToken& token, float* y) {
  if (token.width == 4) return convolve_width<T, 4>(token, y);
  if (token.width == 3) return convolve_width<T, 3>(token, y);
  convolve_width<T, 2>(token, y);
}

// `y` is a plane of scratch.
void convolve(const ConvToken& token, float* y) {
  if (token.out.dtype == DType::kBF16) {
    convolve_as<hwy::bfloat16_t>(token, y);
  } else if (token.out.dtype == DType::kF16) {
    convolve_as<hwy::float16_t>(token, y);
  } else {
    convolve_as<float>(token, y);
  }
  const Run& out = token.out;
  simd_store_run(out.data, out.dtype, out.offset, out.stride, token.n, y);
}

void load_plane(const ConstRun& run, int64_t n, float* plane) {
  simd_load_run(run.data, run.dtype, run.offset, run.stride, n, plane);
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(convolve);
HWY_EXPORT(load_plane);

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
  const int64_t first = offset_of(window, row.slot, channels_.begin, column);
  HWY_DYNAMIC_DISPATCH(load_plane)
  ({window.data, window.dtype, first, window.stride[1]}, channels_.size(), plane.data());
}

void ConvBlock::load_token(int64_t token, Plane& plane) {
  const ConstTensorView& x = params_.x;
  HWY_DYNAMIC_DISPATCH(load_plane)
  ({x.data, x.dtype, offset_of(x, token, channels_.begin), x.stride[1]}, channels_.size(),
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
  const TensorView& out = params_.out;
  ConvToken x;
  x.width = width_;
  x.silu = params_.activation == Activation::kSilu;
  x.n = channels_.size();
  for (int64_t j = 0; j < width_; ++j) {
    x.weight[j] = weight_[static_cast<size_t>(j)].data();
    x.input[j] = inputs_[static_cast<size_t>((newest + 1 + j) % width_)].data();
  }
  x.bias = bias_.data();
  x.out = {out.data, out.dtype, offset_of(out, token, channels_.begin), out.stride[1]};
  HWY_DYNAMIC_DISPATCH(convolve)(x, y_.data());
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
