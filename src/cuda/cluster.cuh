// Blocks of a cluster (sm_90 and up) that wait for each other and write each other's shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/hopper.cuh"

namespace linestate {

/// What this thread has read is read, and what it has written to shared memory of the cluster is
/// seen, once every thread of the cluster has arrived. Arrive and wait alternate.
__device__ inline void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/// `value` to where `at` lies in the shared memory of block `rank` of the cluster, which runs.
__device__ inline void store_in_block(float* at, int rank, float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(at)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
#else
  static_cast<void>(rank);
  *at = value;
#endif
}

}  // namespace linestate
