// The norms' common kernel: groups of neighbouring channels, their sum of squares by a fixed tree,
// and the scaled result.
#pragma once

#include <cstdint>

#include "cuda/device_view.cuh"
#include "cuda/launch.cuh"
#include "cuda/warp.cuh"
#include "linestate/exec_context.h"
#include "ops/common/gated_norm_device.cuh"

namespace linestate {

/// Tensors as [T, groups, n]; what is not there has no data.
struct NormDevice {
  DeviceView<3> x, gate, out;
  DeviceView<2> weight;  // [groups, n]
  DeviceView<2> sum_sq;  // [T, groups], read when `out` is there, else written
  int64_t tokens, groups, n;
  float count;  // channels of a whole group
  float eps;
};

/// [T, C] as [T, groups, C / groups].
inline ConstTensorView norm_groups(const ConstTensorView& tensor, int64_t groups) {
  if (!tensor.defined()) return {};
  return tensor.split(1, tensor.shape[1] / groups);
}

/// Groups up to this size are worked on by a warp, larger ones by a block. A function of the shape,
/// so that the tree is.
inline constexpr int64_t kNormWarpChannels = 1024;
inline constexpr int kNormThreads = 256;

template <int kThreads>
__device__ float norm_sum_sq(const NormDevice& p, int64_t t, int64_t g, int thread,
                             float* partial) {
  float sum = 0.0f;
  for (int64_t i = thread; i < p.n; i += kThreads) {
    const float x = load_at(p.x, t, g, i);
    sum = fmaf(x, x, sum);
  }
  if constexpr (kThreads == 32) return sum_lanes(sum);
  return sum_block<kNormThreads>(sum, partial);
}

template <int kThreads>
__device__ void norm_group(const NormDevice& p, int64_t t, int64_t g, float* partial) {
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const bool given = p.out.data != nullptr && p.sum_sq.data != nullptr;
  const float sum =
      given ? load_at(p.sum_sq, t, g) : norm_sum_sq<kThreads>(p, t, g, thread, partial);
  if (p.out.data == nullptr) {
    if (thread == 0) store_at(p.sum_sq, sum, t, g);
    return;
  }
  const float factor = norm_factor(sum, p.count, p.eps);
  for (int64_t i = thread; i < p.n; i += kThreads) {
    float y = load_at(p.x, t, g, i) * factor * load_at(p.weight, g, i);
    if (p.gate.data != nullptr) y *= norm_gate(load_at(p.gate, t, g, i));
    store_at(p.out, y, t, g, i);
  }
}

template <int kThreads>
__global__ void __launch_bounds__(kNormThreads)
    norm_kernel(const __grid_constant__ NormDevice p, int64_t tasks) {
  __shared__ float partial[kNormThreads / 32];
  constexpr int kTogether = kNormThreads / kThreads;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kTogether;
  for (int64_t task = static_cast<int64_t>(blockIdx.x) * kTogether + threadIdx.x / kThreads;
       task < tasks; task += step) {
    norm_group<kThreads>(p, task / p.groups, task % p.groups, partial);
    if constexpr (kThreads > 32) __syncthreads();
  }
}

inline Status run_norm(const char* name, const NormDevice& p, const ExecContext& context) {
  const int64_t tasks = p.tokens * p.groups;
  if (p.n <= kNormWarpChannels) {
    constexpr int kTogether = kNormThreads / 32;
    return launch(name, norm_kernel<32>, grid_of((tasks + kTogether - 1) / kTogether), kNormThreads,
                  context, p, tasks);
  }
  return launch(name, norm_kernel<kNormThreads>, grid_of(tasks), kNormThreads, context, p, tasks);
}

}  // namespace linestate
