// Starting kernels. A row sets the device once, then launches; nothing here waits or allocates.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "cuda/cuda_api.h"
#include "cuda/cuda_devices.h"
#include "linestate/exec_context.h"
#include "linestate/status.h"

namespace linestate {

/// Blocks of a one-dimensional grid. Kernels walk `for (task = blockIdx.x; task < tasks; task +=
/// gridDim.x)`, so a count past the limit of the hardware is served all the same.
inline unsigned grid_of(int64_t blocks) {
  constexpr int64_t kMost = 0x7fffffff;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

/// Starts `kernel` on the context's stream; arguments convert to its parameters. A grid of no
/// blocks is no launch. REQUIRES: the context's device is current (CudaDeviceGuard).
template <typename... Formal, typename... Actual>
Status launch(const char* name, void (*kernel)(Formal...), dim3 grid, dim3 block,
              const ExecContext& context, Actual&&... actual) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return {};
  const auto start = [&](Formal... formal) {
    void* arguments[] = {static_cast<void*>(&formal)...};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, 0,
                            static_cast<cudaStream_t>(context.stream));
  };
  return cuda_status(name, start(std::forward<Actual>(actual)...));
}

/// What a launch asks for besides its blocks.
struct LaunchShape {
  dim3 grid;
  dim3 block;
  unsigned cluster = 1;   // blocks that share their memory; above 1 needs sm_90
  unsigned shared = 0;    // bytes of dynamic shared memory; above 48 KB see allow_shared_memory
  bool overlaps = false;  // the kernel calls wait_for_earlier_kernel: the context may ask for it
};

/// Whether the context asks for overlapping kernels and its device can.
inline bool launches_overlap(const ExecContext& context) {
  return context.overlap && cuda_architecture(context.device.index) >= 90;
}

/// Lets `kernel` take `bytes` of dynamic shared memory on the context's device. `devices` is the
/// kernel's own: the devices that have been told, so that the runtime is asked once.
template <typename... Formal>
Status allow_shared_memory(void (*kernel)(Formal...), int bytes, const ExecContext& context,
                           std::atomic<uint64_t>& devices) {
  const uint64_t bit = uint64_t{1} << (context.device.index & 63);
  if ((devices.load(std::memory_order_relaxed) & bit) != 0) return {};
  LINESTATE_CUDA_CALL("shared memory",
                      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  devices.fetch_or(bit, std::memory_order_relaxed);
  return {};
}

/// launch() in a shape. REQUIRES: the context's device is current.
template <typename... Formal, typename... Actual>
Status launch_shaped(const char* name, void (*kernel)(Formal...), const LaunchShape& shape,
                     const ExecContext& context, Actual&&... actual) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return {};
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared;
  config.stream = static_cast<cudaStream_t>(context.stream);
  config.attrs = attributes;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {shape.cluster, 1, 1};
  }
  if (shape.overlaps && launches_overlap(context)) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  const auto start = [&](Formal... formal) {
    void* arguments[] = {static_cast<void*>(&formal)...};
    return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments);
  };
  return cuda_status(name, start(std::forward<Actual>(actual)...));
}

// Kernels of one stream that overlap (programmatic dependent launch, sm_90): the next kernel's
// blocks start while the last ones of this kernel still work. Both calls do nothing in a kernel
// that was launched without overlap, and below sm_90.

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
