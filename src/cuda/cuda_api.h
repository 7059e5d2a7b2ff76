// What every call of the CUDA runtime needs: its error as a Status, and the right current device.
// Only sources that are compiled with LINESTATE_CUDA include this.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "linestate/status.h"

namespace linestate {

/// Ok, or kDevice with the call and the runtime's text; no device is kNotFound, no memory
/// kResourceExhausted. Clears the runtime's last error, so that the next call does not report it.
Status cuda_status(const char* call, cudaError_t error);

/// Makes a device current and puts the previous one back. Costs two calls that touch no driver when
/// it is current already.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int32_t device);
  ~CudaDeviceGuard();
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;
  /// Not ok when the device cannot be made current; nothing else may run then.
  const Status& status() const { return status_; }

 private:
  int previous_ = -1;
  Status status_;
};

}  // namespace linestate

/// Leaves the calling function with a kDevice Status when the runtime refuses `expr`.
#define LINESTATE_CUDA_CALL(call, expr)                        \
  do {                                                         \
    const cudaError_t linestate_error_ = (expr);               \
    if (linestate_error_ != cudaSuccess) {                     \
      return ::linestate::cuda_status(call, linestate_error_); \
    }                                                          \
  } while (false)
