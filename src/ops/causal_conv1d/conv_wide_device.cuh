// Width 4 with aligned runs of four channels: a thread has four channels and walks tokens, with the
// window in registers and the next inputs on their way.
//
// 16-bit outputs come from f32 arithmetic with a bound on its error. Where the bound does not tell
// which way to round (about one bf16 output in 200), the place goes on a list, and once the tokens
// are through the warp makes those again in f64, a lane each: a lane that took that path at once
// would hold up 31 others.
#pragma once

#include <cstdint>

#include "cuda/hopper.cuh"
#include "ops/causal_conv1d/conv_device.cuh"
#include "ops/common/conv_window_device.cuh"

namespace linestate {

constexpr int kWideWidth = 4;
constexpr int kWideTail = kWideWidth - 1;
constexpr int kWideTile = 32;                      // tokens
constexpr int kWideReach = kWideTile + kWideTail;  // of one row in a tile, at most

/// Tokens on their way. At most 8: the doubts of a group are a word.
template <DType kType>
constexpr int kWideGroup = kType == DType::kF32 ? 4 : 8;

/// True when x and out have one dtype, width 4 and rows of whole, aligned runs of four channels.
inline bool conv_is_wide(const ConvDevice& p) {
  return p.width == kWideWidth && p.channels % kConvQuad == 0 && p.x.dtype == p.out.dtype &&
         p.x.packed && p.out.packed;
}

/// True when four neighbouring channels of the window are one access and have x's dtype.
inline bool window_is_wide(const CausalConv1dParams& p) {
  const int64_t bytes = kConvQuad * dtype_bytes(p.x.dtype);
  return p.window.dtype == p.x.dtype && p.window.stride[1] == 1 &&
         (p.window.shape[0] <= 1 || p.window.stride[0] % kConvQuad == 0) &&
         p.window.stride[2] % kConvQuad == 0 &&
         reinterpret_cast<uintptr_t>(p.window.data) % static_cast<uintptr_t>(bytes) == 0;
}

/// Four channels as they lie in memory.
template <DType kType>
struct WideBits {
  using Type = uint2;
};
template <>
struct WideBits<DType::kF32> {
  using Type = uint4;
};

template <DType kType>
__device__ typename WideBits<kType>::Type* wide_at(void* data, int64_t at) {
  constexpr int64_t kBytes = kType == DType::kF32 ? 4 : 2;
  return reinterpret_cast<typename WideBits<kType>::Type*>(static_cast<char*>(data) + at * kBytes);
}

template <DType kType>
__device__ void widen_wide(typename WideBits<kType>::Type bits, float (&x)[4]) {
  if constexpr (kType == DType::kF32) {
    widen_quad(bits, kType, x);
  } else {
    widen_quad(make_uint4(bits.x, bits.y, 0, 0), kType, x);
  }
}

/// Weights [W][4], bias, and what bounds the error of an output.
struct WideTaps {
  float w[kWideWidth][4];
  float bias[4];
  float slope[4];  // (|bias| + sum |w|) * kWideSumError; times the largest |x|, or 1 with a bias
  float least;     // 1 with a bias, else 0
};

/// Bounds of the errors of f32 arithmetic. Of the sum, by |bias| + sum |w x|: four roundings, 1.1
/// of them through SiLU, and 0.11 for its exponent. Of SiLU, by |y|: ex2.approx, the sum,
/// rcp.approx and the product. In units of 2^-22: 1.21 and 2.
inline constexpr float kWideSumError = 1.3f * 0x1p-22f;
inline constexpr float kWideSiluError = 2.1f * 0x1p-22f;

__device__ inline void load_wide_taps(const ConvDevice& p, int64_t c, WideTaps& taps) {
  taps.least = p.bias.data == nullptr ? 0.0f : 1.0f;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    float w[kWideWidth];
    load_quad(p.weight, p.weight.offset(c + e), w);
    taps.bias[e] = p.bias.data == nullptr ? 0.0f : load_at(p.bias, c + e);
    float sum = fabsf(taps.bias[e]);
#pragma unroll
    for (int j = 0; j < kWideWidth; ++j) {
      taps.w[j][e] = w[j];
      sum += fabsf(w[j]);
    }
    taps.slope[e] = fmaf(sum, kWideSumError, 0x1p-120f);  // the addend keeps 0 * inf out
  }
}

/// A thread's four channels. Lanes behind the last channel repeat the last four, and own none.
struct WideLane {
  int64_t first;  // of the warp
  int64_t c;
  bool owns;
  bool wide_window;
};

/// Input i of the row, counted from its first token of this call; negative ones are in the window.
template <DType kType>
__device__ void load_wide_input(const ConvDevice& p, const WideLane& lane, const DeviceRow& row,
                                int64_t i, float (&x)[4]) {
  if (i >= 0) {
    widen_wide<kType>(*wide_at<kType>(p.x.data, p.x.offset(row.token_begin + i, lane.c)), x);
    return;
  }
  const int64_t j = kWideTail + i;
  if (lane.wide_window && !row.fresh) {
    widen_wide<kType>(*wide_at<kType>(p.window.data, p.window.offset(row.slot, lane.c, j)), x);
    return;
  }
  load_conv_past(p, row, j, {lane.c, kConvQuad}, x);
}

__device__ inline float wide_activation(bool silu, float sum) {
  constexpr float kLog2E = 1.44269504f;
  return silu ? sum * reciprocal_fast(1.0f + exp2_fast(sum * -kLog2E)) : sum;
}

/// Stores four 16-bit outputs and returns, for each pair of them, 1 in the half of an output whose
/// rounding is in doubt. `reach` is at least the largest |x| of a lane's four inputs.
template <DType kType>
__device__ uint2 store_wide_16(const WideTaps& taps, bool silu, const float (&sum)[4],
                               const float (&reach)[4], uint2* out) {
  const auto pack = [](float low, float high) {
    return kType == DType::kBF16 ? pack_bf16(low, high) : pack_f16(low, high);
  };
  uint32_t bits[2];
  uint32_t doubt[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float low[2];
    float high[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int e = 2 * i + half;
      const float y = wide_activation(silu, sum[e]);
      const float margin = fmaf(taps.slope[e], reach[e], fabsf(y) * kWideSiluError);
      low[half] = y - margin;
      high[half] = y + margin;
    }
    bits[i] = pack(low[0], low[1]);
    doubt[i] = __vminu2(bits[i] ^ pack(high[0], high[1]), 0x00010001u);
  }
  *out = make_uint2(bits[0], bits[1]);
  return make_uint2(doubt[0], doubt[1]);
}

/// The exact output of (token t, channel c), rounded.
__device__ inline void redo_conv_output(const ConvDevice& p, const DeviceRow& row, int64_t t,
                                        int64_t c) {
  double sum = p.bias.data == nullptr ? 0.0 : static_cast<double>(load_at(p.bias, c));
#pragma unroll
  for (int j = 0; j < kWideWidth; ++j) {
    const int64_t i = t - row.token_begin - kWideTail + j;
    float x = 0.0f;
    if (i >= 0) {
      x = load_at(p.x, row.token_begin + i, c);
    } else if (!row.fresh) {
      x = load_at(p.window, row.slot, c, kWideTail + i);
    }
    sum += static_cast<double>(load_at(p.weight, c, j)) * static_cast<double>(x);
  }
  store_at(p.out, conv_activation(p.silu, sum), t, c);
}

/// Outputs of a warp whose rounding is in doubt.
struct WideDoubts {
  uint16_t place[kWideReach * 32 * kConvQuad];  // token * 128 + channel

  /// A group's doubts, from token t of the walk on: bit 15 - 2 token - pair of the half that holds
  /// the channel. `count` is the same in all lanes.
  __device__ void collect(uint32_t doubt, int t, int& count) {
    for (unsigned lanes = __ballot_sync(kAllLanes, doubt != 0); lanes != 0;
         lanes = __ballot_sync(kAllLanes, doubt != 0)) {
      if (doubt != 0) {
        const int bit = __ffs(static_cast<int>(doubt)) - 1;
        const int pair = 15 - bit % 16;
        const int at = count + __popc(lanes & ((1u << lane_id()) - 1u));
        place[at] = static_cast<uint16_t>((t + pair / 2) * 128 + lane_id() * kConvQuad +
                                          pair % 2 * 2 + bit / 16);
        doubt &= doubt - 1;
      }
      count += __popc(lanes);
    }
  }
};

/// Makes the collected outputs again, each by some lane of the warp.
__device__ inline void redo_wide(const ConvDevice& p, const WideLane& lane, const DeviceRow& row,
                                 int64_t t, const WideDoubts& doubts, int count) {
  __syncwarp();  // also: the rounded outputs of all lanes lie in memory
  for (int i = lane_id(); i < count; i += 32) {
    const int place = doubts.place[i];
    const int64_t c = min(lane.first + place % 128, p.channels - kConvQuad + place % kConvQuad);
    redo_conv_output(p, row, t + place / 128, c);
  }
  __syncwarp();
}

/// A thread's place in a row.
template <DType kType>
struct WideWalk {
  using Bits = typename WideBits<kType>::Type;
  Bits ahead[kWideGroup<kType>];
  float x[4][4];  // input i of the walk in x[i % 4]
  float reach[4];
  const char* from;  // the first input that is not on its way
  char* to;
};

/// The next group of tokens, or `left` of them when that is less; `after` tokens follow them.
/// Returns the doubts of the group.
template <DType kType, bool kFull>
__device__ uint32_t walk_group(const ConvDevice& p, const WideTaps& taps, int left, int after,
                               WideWalk<kType>& walk) {
  using Bits = typename WideBits<kType>::Type;
  constexpr int kGroup = kWideGroup<kType>;
  constexpr int64_t kBytes = sizeof(Bits) / kConvQuad;
  uint32_t doubts = 0;
#pragma unroll
  for (int u = 0; u < kGroup; ++u) {
    if (!kFull && u >= left) break;
    float(&x)[4] = walk.x[u % 4];
    widen_wide<kType>(walk.ahead[u], x);
    if (kFull && u < after) walk.ahead[u] = *reinterpret_cast<const Bits*>(walk.from);
    walk.from += p.x.stride[0] * kBytes;
    float sum[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sum[e] = taps.bias[e];
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[e] = fmaf(taps.w[j][e], walk.x[(u + 1 + j) % 4][e], sum[e]);
      walk.reach[e] = fmaxf(walk.reach[e], fabsf(x[e]));
    }
    Bits* const to = reinterpret_cast<Bits*>(walk.to);
    walk.to += p.out.stride[0] * kBytes;
    if constexpr (kType == DType::kF32) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[e] = conv_activation(p.silu, sum[e]);
      *reinterpret_cast<float4*>(to) = make_float4(sum[0], sum[1], sum[2], sum[3]);
    } else {
      const uint2 doubt = store_wide_16<kType>(taps, p.silu, sum, walk.reach, to);
      doubts = 4 * doubts + (2 * doubt.x + doubt.y);
    }
  }
  return kFull ? doubts : doubts << (2 * (kGroup - left));
}

/// Valid tokens [t, end) of one row, at most kWideReach of them.
template <DType kType>
__device__ void convolve_wide(const ConvDevice& p, const WideLane& lane, const DeviceRow& row,
                              int64_t t, int64_t end, WideDoubts& doubts) {
  constexpr int kGroup = kWideGroup<kType>;
  const int count = static_cast<int>(end - t);
  WideWalk<kType> walk;
  walk.from = reinterpret_cast<const char*>(wide_at<kType>(p.x.data, p.x.offset(t, lane.c)));
  walk.to = reinterpret_cast<char*>(wide_at<kType>(p.out.data, p.out.offset(t, lane.c)));
#pragma unroll
  for (int u = 0; u < kGroup; ++u) {
    if (u < count) walk.ahead[u] = *wide_at<kType>(p.x.data, p.x.offset(t + u, lane.c));
  }
  walk.from += kGroup * p.x.stride[0] * (kType == DType::kF32 ? 4 : 2);
  WideTaps taps;
  load_wide_taps(p, lane.c, taps);
#pragma unroll
  for (int e = 0; e < 4; ++e) walk.reach[e] = taps.least;
#pragma unroll
  for (int j = 1; j < 4; ++j) {
    load_wide_input<kType>(p, lane, row, t - row.token_begin - 4 + j, walk.x[j]);
#pragma unroll
    for (int e = 0; e < 4; ++e) walk.reach[e] = fmaxf(walk.reach[e], fabsf(walk.x[j][e]));
  }
  int listed = 0;
  int done = 0;
  for (; done + kGroup <= count; done += kGroup) {
    const uint32_t doubt = walk_group<kType, true>(p, taps, kGroup, count - done - kGroup, walk);
    if constexpr (kType != DType::kF32) doubts.collect(doubt, done, listed);
  }
  if (done < count) {
    const uint32_t doubt = walk_group<kType, false>(p, taps, count - done, 0, walk);
    if constexpr (kType != DType::kF32) doubts.collect(doubt, done, listed);
  }
  if (listed > 0) redo_wide(p, lane, row, t, doubts, listed);
}

/// The window of slot `to` becomes the last W-1 of (window of row.slot ++ `inputs` inputs).
template <DType kType>
__device__ void write_wide_window(const ConvDevice& p, const DeviceRow& row, int64_t to, int64_t c,
                                  int64_t inputs) {
  typename WideBits<kType>::Type bits[kWideTail] = {};
#pragma unroll
  for (int j = 0; j < kWideTail; ++j) {
    const int64_t source = inputs + j;
    if (source >= kWideTail) {
      bits[j] = *wide_at<kType>(p.x.data, p.x.offset(row.token_begin + source - kWideTail, c));
    } else if (!row.fresh) {
      bits[j] = *wide_at<kType>(p.window.data, p.window.offset(row.slot, c, source));
    }
  }
#pragma unroll
  for (int j = 0; j < kWideTail; ++j) {
    *wide_at<kType>(p.window.data, p.window.offset(to, c, j)) = bits[j];
  }
}

/// move_window of conv_window_device.cuh for a thread's channels.
template <DType kType>
__device__ void move_wide_window(const ConvDevice& p, const WideLane& lane, int64_t n,
                                 const DeviceRow& row) {
  const auto write = [&](int64_t to, int64_t inputs) {
    if (lane.wide_window) {
      write_wide_window<kType>(p, row, to, lane.c, inputs);
      return;
    }
    const WindowDevice window{p.rows, p.snapshots, p.window, p.x, p.channels, kWideTail};
    for (int e = 0; e < kConvQuad; ++e) {
      write_window(window, row, to, lane.c + e, inputs,
                   [&](int64_t i) { return row.token_begin + i; });
    }
  };
  if (!row.live || !lane.owns) return;
  for (int64_t m = 0; m < p.snapshots.count; ++m) {
    const int64_t inputs = snapshot_after(p.snapshots, p.rows, n, row, row.valid, m);
    if (inputs != kNoSnapshot) write(p.snapshots.slot.at(m), inputs);
  }
  if (row.valid > 0 || row.fresh) write(row.slot, row.valid);
}

}  // namespace linestate
