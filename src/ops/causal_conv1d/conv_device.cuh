// CausalConv1dParams as kernels take them, one output, and the window.
#pragma once

#include <cstdint>

#include "cuda/device_rows.cuh"
#include "cuda/device_view.cuh"
#include "linestate/ops/causal_conv1d.h"

namespace linestate {

struct ConvDevice {
  DeviceRows rows;
  DeviceSnapshots snapshots;
  DeviceView<2> x, out, weight;
  DeviceView<1> bias;
  DeviceView<3> window;
  int64_t channels;
  int32_t width;
  bool silu;
  DeviceStatus* status;
};

inline ConvDevice conv_device(const CausalConv1dParams& p, const ExecContext& context) {
  ConvDevice d{};
  d.rows = device_rows(p.rows, p.window.shape[0], p.x.shape[0]);
  d.snapshots = device_snapshots(p.snapshots);
  d.x = device_view<2>(p.x);
  d.out = device_view<2>(p.out);
  d.weight = device_view<2>(p.weight);
  d.bias = device_view<1>(p.bias);
  d.window = device_view<3>(p.window);
  d.channels = p.x.shape[1];
  d.width = static_cast<int32_t>(p.weight.shape[1]);
  d.silu = p.activation == Activation::kSilu;
  d.status = context.status;
  return d;
}

/// Channels of one thread. A run that reaches behind the last channel goes element by element.
inline constexpr int kConvQuad = 4;

struct ConvChannels {
  int64_t first;
  int count;  // 1 to 4
};

__device__ inline ConvChannels conv_channels(const ConvDevice& p, int64_t quad) {
  const int64_t first = quad * kConvQuad;
  const int64_t left = p.channels - first;
  return {first, static_cast<int>(left < kConvQuad ? left : kConvQuad)};
}

template <int kRank>
__device__ void load_channels(const DeviceView<kRank>& view, int64_t at, int64_t step, bool packed,
                              int count, float* out) {
  if (packed && count == kConvQuad) {
    widen_quad(load_quad_bits(view.data, view.dtype != DType::kF32, at), view.dtype, out);
    return;
  }
#pragma unroll
  for (int e = 0; e < kConvQuad; ++e) {
    out[e] = e < count ? load_f32(view.data, view.dtype, at + e * step) : 0.0f;
  }
}

__device__ inline void load_conv_input(const ConvDevice& p, int64_t t, ConvChannels c, float* out) {
  load_channels(p.x, p.x.offset(t, c.first), p.x.step(), p.x.packed, c.count, out);
}

/// Column j of the slot's window, oldest first; zeros for a fresh row.
__device__ inline void load_conv_past(const ConvDevice& p, const DeviceRow& row, int64_t j,
                                      ConvChannels c, float* out) {
  if (row.fresh) {
#pragma unroll
    for (int e = 0; e < kConvQuad; ++e) out[e] = 0.0f;
    return;
  }
  load_channels(p.window, p.window.offset(row.slot, c.first, j), p.window.stride[1], false, c.count,
                out);
}

/// Weights and bias of a thread's channels, [W][4] and [4].
template <int W>
struct ConvTaps {
  float w[W][kConvQuad];
  float bias[kConvQuad];
};

template <int W>
__device__ ConvTaps<W> load_conv_taps(const ConvDevice& p, ConvChannels c) {
  ConvTaps<W> taps;
#pragma unroll
  for (int j = 0; j < W; ++j) {
    load_channels(p.weight, p.weight.offset(c.first, j), p.weight.stride[0], false, c.count,
                  taps.w[j]);
  }
#pragma unroll
  for (int e = 0; e < kConvQuad; ++e) taps.bias[e] = 0.0f;
  if (p.bias.data != nullptr) {
    load_channels(p.bias, p.bias.offset(c.first), p.bias.step(), false, c.count, taps.bias);
  }
  return taps;
}

__device__ inline uint32_t conv_bits(DType dtype, float y) {
  return dtype == DType::kBF16 ? f32_to_bf16_bits(y) : f32_to_f16_bits(y);
}

__device__ inline float conv_activation(bool silu, float sum) {
  return silu ? sum / (1.0f + expf(-sum)) : sum;
}
/// From the exact sum.
__device__ inline float conv_activation(bool silu, double sum) {
  return static_cast<float>(silu ? sum / (1.0 + exp(-sum)) : sum);
}

/// One output in f32, and for 16-bit outputs the rounding of the exact value: where the f32 result
/// lies too near a rounding border to tell, the sum is made again in f64. The margin covers W + 1
/// roundings of the sum and 7 half-ulps of SiLU; 2^-20 is 16 half-ulps.
template <int W>
__device__ float conv_output(const ConvDevice& p, const ConvTaps<W>& taps,
                             const float (&in)[W][kConvQuad], int e) {
  float sum = taps.bias[e];
  float reach = fabsf(sum);
#pragma unroll
  for (int j = 0; j < W; ++j) {
    sum = fmaf(taps.w[j][e], in[j][e], sum);
    reach += fabsf(taps.w[j][e] * in[j][e]);
  }
  const float y = conv_activation(p.silu, sum);
  if (p.out.dtype == DType::kF32) return y;
  const float margin = reach * 0x1p-20f;
  if (conv_bits(p.out.dtype, y - margin) == conv_bits(p.out.dtype, y + margin)) return y;
  double exact = taps.bias[e];
#pragma unroll
  for (int j = 0; j < W; ++j) {
    exact += static_cast<double>(taps.w[j][e]) * static_cast<double>(in[j][e]);
  }
  return conv_activation(p.silu, exact);
}

__device__ inline void store_conv_out(const ConvDevice& p, int64_t t, ConvChannels c,
                                      const float* y) {
  const int64_t at = p.out.offset(t, c.first);
  if (p.out.packed && c.count == kConvQuad) {
    store_quad(p.out, at, y);
    return;
  }
#pragma unroll
  for (int e = 0; e < kConvQuad; ++e) {
    if (e < c.count) store_f32(p.out.data, p.out.dtype, at + e * p.out.step(), y[e]);
  }
}

template <int W>
__device__ void store_conv_token(const ConvDevice& p, const ConvTaps<W>& taps, int64_t t,
                                 ConvChannels c, const float (&in)[W][kConvQuad]) {
  float y[kConvQuad];
#pragma unroll
  for (int e = 0; e < kConvQuad; ++e) y[e] = conv_output<W>(p, taps, in, e);
  store_conv_out(p, t, c, y);
}

__device__ inline void clear_conv_token(const ConvDevice& p, int64_t t, ConvChannels c) {
  const float zeros[kConvQuad] = {};
  store_conv_out(p, t, c, zeros);
}

/// Runs call.template operator()<W>().
template <typename Call>
auto with_conv_width(int64_t width, const Call& call) {
  if (width == 2) return call.template operator()<2>();
  if (width == 3) return call.template operator()<3>();
  return call.template operator()<4>();
}

}  // namespace linestate
