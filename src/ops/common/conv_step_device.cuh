// One token of the short convolution on channels that a thread holds, and their windows, for
// kernels that go on with the result. Bits are those of causal_conv1d_update: its 16-bit outputs
// are correctly rounded, its f32 ones sum in this order.
#pragma once

#include <cstdint>

#include "cuda/device_rows.cuh"
#include "cuda/device_view.cuh"

namespace linestate {

inline constexpr int kConvStepWidth = 4;

struct ConvStepDevice {
  DeviceView<2> weight;  // packed
  DeviceView<1> bias;
  DeviceView<3> window;
  DeviceView<2> x;
  bool silu;
};

/// kCount neighbouring channels.
template <int kCount>
struct ConvStepChannels {
  float taps[kCount][kConvStepWidth];
  float bias[kCount];
  uint32_t past[kCount][kConvStepWidth - 1];  // as the window stores it, oldest first
  uint32_t x[kCount];                         // as x stores it
};

template <int kCount>
__device__ void load_conv_weights(const ConvStepDevice& p, int64_t c,
                                  ConvStepChannels<kCount>& channels) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    load_quad(p.weight, p.weight.offset(c + e, 0), channels.taps[e]);
    channels.bias[e] = p.bias.data == nullptr ? 0.0f : load_at(p.bias, c + e);
  }
}

/// Zeros for a fresh row, whatever the slot holds.
template <int kCount>
__device__ void load_conv_window(const ConvStepDevice& p, const DeviceRow& row, int64_t c,
                                 ConvStepChannels<kCount>& channels) {
  const bool reads = row.live && !row.fresh;
  const int64_t at = p.window.offset(row.slot, c);
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
#pragma unroll
    for (int j = 0; j + 1 < kConvStepWidth; ++j) {
      const int64_t from = at + e * p.window.stride[1] + j * p.window.stride[2];
      channels.past[e][j] = reads ? load_bits(p.window.data, p.window.dtype, from) : 0;
    }
  }
}

template <int kCount>
__device__ void load_conv_x(const ConvStepDevice& p, int64_t n, int64_t c,
                            ConvStepChannels<kCount>& channels) {
  const int64_t at = p.x.offset(n, c);
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    channels.x[e] = load_bits(p.x.data, p.x.dtype, at + e * p.x.step());
  }
}

__device__ inline uint32_t conv_step_bits(DType dtype, float y) {
  return dtype == DType::kBF16 ? f32_to_bf16_bits(y) : f32_to_f16_bits(y);
}

/// The exact output, for where f32 lies too near a rounding border to tell. Out of line: it is
/// rare, and f64 would cost every kernel its registers.
__device__ __noinline__ inline float conv_step_exact(float4 w, float4 in, float bias, bool silu) {
  double exact = bias;
  exact += static_cast<double>(w.x) * static_cast<double>(in.x);
  exact += static_cast<double>(w.y) * static_cast<double>(in.y);
  exact += static_cast<double>(w.z) * static_cast<double>(in.z);
  exact += static_cast<double>(w.w) * static_cast<double>(in.w);
  return static_cast<float>(silu ? exact / (1.0 + exp(-exact)) : exact);
}

/// The output of channel e as the next operator would load it: in x's dtype.
template <int kCount>
__device__ float conv_step_output(const ConvStepDevice& p, const ConvStepChannels<kCount>& channels,
                                  int e) {
  float in[kConvStepWidth];
#pragma unroll
  for (int j = 0; j + 1 < kConvStepWidth; ++j) {
    in[j] = widen_bits(channels.past[e][j], p.window.dtype);
  }
  in[kConvStepWidth - 1] = widen_bits(channels.x[e], p.x.dtype);
  const float(&w)[kConvStepWidth] = channels.taps[e];
  float sum = channels.bias[e];
  float reach = fabsf(sum);
#pragma unroll
  for (int j = 0; j < kConvStepWidth; ++j) {
    sum = fmaf(w[j], in[j], sum);
    reach += fabsf(w[j] * in[j]);
  }
  float y = p.silu ? sum / (1.0f + expf(-sum)) : sum;
  if (p.x.dtype == DType::kF32) return y;
  // W + 1 roundings of the sum and 7 half-ulps of SiLU; 2^-20 is 16 half-ulps.
  const float margin = reach * 0x1p-20f;
  if (conv_step_bits(p.x.dtype, y - margin) != conv_step_bits(p.x.dtype, y + margin)) {
    y = conv_step_exact(make_float4(w[0], w[1], w[2], w[3]),
                        make_float4(in[0], in[1], in[2], in[3]), channels.bias[e], p.silu);
  }
  return widen_bits(conv_step_bits(p.x.dtype, y), p.x.dtype);
}

/// The window behind this token, into slot `to`.
template <int kCount>
__device__ void store_conv_window(const ConvStepDevice& p, int64_t to, int64_t c,
                                  const ConvStepChannels<kCount>& channels) {
  const bool wide = p.window.dtype == DType::kF32;
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
#pragma unroll
    for (int j = 0; j + 1 < kConvStepWidth; ++j) {
      const int64_t at = p.window.offset(to, c + e, j);
      const uint32_t x =
          wide ? __float_as_uint(widen_bits(channels.x[e], p.x.dtype)) : channels.x[e];
      const uint32_t bits = j + 2 < kConvStepWidth ? channels.past[e][j + 1] : x;
      if (wide) {
        static_cast<uint32_t*>(p.window.data)[at] = bits;
      } else {
        static_cast<uint16_t*>(p.window.data)[at] = static_cast<uint16_t>(bits);
      }
    }
  }
}

/// A fresh row without a token: zeros.
template <int kCount>
__device__ void clear_conv_window(const ConvStepDevice& p, int64_t slot, int64_t c) {
  ConvStepChannels<kCount> zeros = {};
  store_conv_window<kCount>(p, slot, c, zeros);
}

}  // namespace linestate
