// Copies from global to shared memory that run in the background (sm_80 and later). A thread waits
// for its own copies; others need a barrier besides.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

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

}  // namespace linestate
