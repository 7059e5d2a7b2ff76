// The maths of the gated RMS norm, for the norms and for kernels that end with one.
#pragma once

#include <cuda_runtime.h>

namespace linestate {

__device__ inline float norm_factor(float sum_sq, float count, float eps) {
  return 1.0f / sqrtf(sum_sq / count + eps);
}

/// sigmoid(z) without overflow.
__device__ inline float norm_gate(float z) {
  const float e = expf(-fabsf(z));
  return (z < 0.0f ? e : 1.0f) / (1.0f + e);
}

}  // namespace linestate
