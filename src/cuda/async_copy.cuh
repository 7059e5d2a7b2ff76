// Copies from global to shared memory that run in the background (sm_80 and later). A thread waits
// for its own copies; others need a barrier besides.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/hopper.cuh"

namespace linestate {

/// Four neighbouring elements: 16 bytes of f32, or 8 of a 16-bit type. Zeros, and nothing is read,
/// when `live` is false. Both ends aligned to what is copied.
__device__ inline void copy_quad_async(void* to, const void* from, bool narrow, bool live) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if (narrow) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at), "l"(from),
                 "r"(live ? 8 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                 "r"(live ? 16 : 0)
                 : "memory");
  }
}

/// Waits for all copies of this thread.
__device__ inline void wait_async_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Contiguous bytes, by the bulk copy engine from sm_90 on and by cp.async of every thread before.
// In order, every thread of the block calls begin_fetch, then does other work, finish_fetch,
// __syncthreads, wait_fetch.

/// `from` and `to` aligned to 16 bytes, `bytes` a multiple of 16. `done` is this fetch's own word
/// of shared memory, used for no other fetch of the block. Thread 0 of `threads` starts the engine.
__device__ inline void begin_fetch(void* to, const void* from, int bytes, uint64_t* done,
                                   int thread, int threads) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static_cast<void>(threads);
  if (thread != 0) return;
  const uint32_t barrier = shared_address(done);
  barrier_init(barrier, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#else
  static_cast<void>(done);
  for (int at = 16 * thread; at < bytes; at += 16 * threads) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to) + at),
                 "l"(static_cast<const char*>(from) + at)
                 : "memory");
  }
#endif
}

__device__ inline void finish_fetch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

__device__ inline void wait_fetch(const uint64_t* done) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  barrier_wait(shared_address(done), 0);
#else
  static_cast<void>(done);
#endif
}

}  // namespace linestate
