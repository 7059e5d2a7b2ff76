// Kernels of one stream that overlap (programmatic dependent launch, sm_90): the next kernel's
// blocks start while the last ones of this kernel still work. Both calls do nothing in a kernel
// that was launched without overlap, and below sm_90.
#pragma once

#include <cuda_runtime.h>

namespace linestate {

/// Waits for the kernel before on the stream: everything it wrote is visible then. What it may
/// write is not read before, and nothing is written before.
__device__ inline void wait_for_earlier_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the kernel behind start its blocks. Only after wait_for_earlier_kernel(), so that what one
/// kernel has waited for, the next one need not.
__device__ inline void admit_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace linestate
