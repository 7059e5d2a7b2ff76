// Tokens of one row and head in shared memory, all of them fetched at once: their loads are on the
// way together, and no token waits for the one before it.
#pragma once

#include <cstdint>

#include "cuda/fast_divider.h"
#include "ops/lightning/lightning_lane_step.cuh"

namespace linestate {

/// Most tasks of a call; more rows and heads than that are refused.
inline constexpr int64_t kMostLightningTasks = 0x7fffffff;

/// How tasks are numbered: pieces of V, then heads, then rows.
struct LightningTasks {
  int32_t count;
  FastDivider pieces, heads;

  LightningTasks(int64_t rows, int64_t H, int64_t pieces_of_head)
      : count(static_cast<int32_t>(rows * H * pieces_of_head)), pieces(pieces_of_head), heads(H) {}
};

/// A vector of kMost tokens, [kMost][kChannels] f32, zeros behind D; `keep` takes it as it came.
template <int kChannels, int kMost>
using LightningVectors = float[kMost][kChannels];

/// One of the tensors of the nodes, [T, H, D], and where to keep its bits: no data = nowhere.
struct LightningSource {
  DeviceView<3> from, keep;
  float factor;
};

__device__ inline void keep_lightning_bits(const DeviceView<3>& to, int64_t at, uint4 bits) {
  if (to.dtype == DType::kF32) {
    auto* data = static_cast<uint32_t*>(to.data) + at;
    data[0] = bits.x;
    data[to.step()] = bits.y;
    data[2 * to.step()] = bits.z;
    data[3 * to.step()] = bits.w;
  } else {
    auto* data = static_cast<uint16_t*>(to.data) + at;
    data[0] = static_cast<uint16_t>(bits.x);
    data[to.step()] = static_cast<uint16_t>(bits.x >> 16);
    data[2 * to.step()] = static_cast<uint16_t>(bits.y);
    data[3 * to.step()] = static_cast<uint16_t>(bits.y >> 16);
  }
}

/// Four elements of any stride.
__device__ __noinline__ inline uint4 gather_lightning_bits(const void* from, bool narrow,
                                                           int64_t at, int64_t step) {
  if (!narrow) {
    const auto* data = static_cast<const uint32_t*>(from) + at;
    return make_uint4(data[0], data[step], data[2 * step], data[3 * step]);
  }
  const auto* data = static_cast<const uint16_t*>(from) + at;
  return make_uint4(data[0] | static_cast<uint32_t>(data[step]) << 16,
                    data[2 * step] | static_cast<uint32_t>(data[3 * step]) << 16, 0, 0);
}

/// Tokens token_at(0) .. token_at(count - 1) of head h into `to`; by kThreads threads. The caller
/// synchronises.
template <int kChannels, int kMost, int kThreads, typename TokenAt>
__device__ void stage_lightning(const LightningSource& source, int D, int count, int64_t h,
                                const TokenAt& token_at, LightningVectors<kChannels, kMost>& to) {
  constexpr int kQuads = kChannels / 4;
  constexpr int kAtOnce = 4;
  const DeviceView<3>& view = source.from;
  const bool narrow = view.dtype != DType::kF32;
  for (int begin = static_cast<int>(threadIdx.x); begin < count * kQuads;
       begin += kAtOnce * kThreads) {
    uint4 bits[kAtOnce];
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) {
      const int n = begin + a * kThreads;
      const int c = n % kQuads * 4;
      const bool live = n < count * kQuads && c < D;
      const int64_t at = live ? view.offset(token_at(n / kQuads), h, c) : 0;
      bits[a] = read_quad_bits(view.data, narrow, at, live && view.packed);
      if (live && !view.packed) bits[a] = gather_lightning_bits(view.data, narrow, at, view.step());
    }
#pragma unroll
    for (int a = 0; a < kAtOnce; ++a) {
      const int n = begin + a * kThreads;
      const int c = n % kQuads * 4;
      if (n >= count * kQuads) continue;
      float x[4];
      widen_quad(bits[a], view.dtype, x);
      *reinterpret_cast<float4*>(&to[n / kQuads][c]) = make_float4(
          x[0] * source.factor, x[1] * source.factor, x[2] * source.factor, x[3] * source.factor);
      if (source.keep.data == nullptr || c >= D) continue;
      const int64_t at = source.keep.offset(token_at(n / kQuads), h, c);
      if (!source.keep.packed) {
        keep_lightning_bits(source.keep, at, bits[a]);
      } else if (narrow) {
        *reinterpret_cast<uint2*>(static_cast<uint16_t*>(source.keep.data) + at) =
            make_uint2(bits[a].x, bits[a].y);
      } else {
        *reinterpret_cast<uint4*>(static_cast<uint32_t*>(source.keep.data) + at) = bits[a];
      }
    }
  }
}

}  // namespace linestate
