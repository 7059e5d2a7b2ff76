// Sums over lanes. The tree is a function of the template arguments alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace linestate {

inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x & 31u); }

/// Sum over each group of kLanes neighbours; every lane of the group gets the same bits.
template <int kLanes = 32>
__device__ float sum_lanes(float x) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(kAllLanes, x, mask);
  return x;
}

/// One level of transpose_sum: half of kWidth * 2 values stay, half go to the lane across.
template <int kWidth, int kMask, int kCount>
__device__ void transpose_level(float (&x)[kCount]) {
  if constexpr (kWidth > 0) {
    const bool upper = (lane_id() & kMask) != 0;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float sent = upper ? x[i] : x[i + kWidth];
      const float kept = upper ? x[i + kWidth] : x[i];
      x[i] = kept + __shfl_xor_sync(kAllLanes, sent, kMask);
    }
    transpose_level<kWidth / 2, kMask / 2>(x);
  } else if constexpr (kMask > 0) {
    x[0] += __shfl_xor_sync(kAllLanes, x[0], kMask);
    transpose_level<0, kMask / 2>(x);
  }
}

/// kCount sums over a group of kLanes lanes at once, for kCount a power of two up to kLanes. Lane l
/// of the group gets sum number l / (kLanes / kCount). Half the values travel at each level, so
/// this takes kCount - 1 + log2(kLanes / kCount) exchanges instead of kCount * log2(kLanes).
template <int kCount, int kLanes>
__device__ float transpose_sum(float (&x)[kCount]) {
  static_assert(kCount <= kLanes, "a lane keeps one sum");
  transpose_level<kCount / 2, kLanes / 2>(x);
  return x[0];
}

__device__ inline int64_t min_lanes(int64_t x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    const int64_t other = __shfl_xor_sync(kAllLanes, static_cast<long long>(x), mask);
    x = other < x ? other : x;
  }
  return x;
}

/// Sum over a block of kThreads threads, a multiple of 32; `partial` is shared memory for
/// kThreads / 32 floats that nobody else uses until every thread has returned.
template <int kThreads>
__device__ float sum_block(float x, float* partial) {
  x = sum_lanes(x);
  if (lane_id() == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) total += partial[warp];
  return total;
}

}  // namespace linestate
