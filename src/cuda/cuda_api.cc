#ifdef LINESTATE_CUDA

#include "cuda/cuda_api.h"

#include "base/message.h"

namespace linestate {

Status cuda_status(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  StatusCode code = StatusCode::kDevice;
  if (error == cudaErrorNoDevice) code = StatusCode::kNotFound;
  if (error == cudaErrorMemoryAllocation) code = StatusCode::kResourceExhausted;
  return Status(code, concat(call, ": ", cudaGetErrorString(error)));
}

CudaDeviceGuard::CudaDeviceGuard(int32_t device) {
  int current = 0;
  status_ = cuda_status("cudaGetDevice", cudaGetDevice(&current));
  if (!status_.ok() || current == device) return;
  status_ = cuda_status("cudaSetDevice", cudaSetDevice(device));
  if (status_.ok()) previous_ = current;
}

CudaDeviceGuard::~CudaDeviceGuard() {
  if (previous_ >= 0) static_cast<void>(cudaSetDevice(previous_));
}

}  // namespace linestate

#endif
