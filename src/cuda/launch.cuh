// Starting kernels. A row sets the device once, then launches; nothing here waits or allocates.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "cuda/cuda_api.h"
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

}  // namespace linestate
