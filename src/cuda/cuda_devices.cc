#include "cuda/cuda_devices.h"

#ifdef LINESTATE_CUDA
#include <cuda_runtime_api.h>

#include "base/message.h"
#endif

namespace linestate {

#ifdef LINESTATE_CUDA

namespace {

Status cuda_failure(const char* call, cudaError_t error) {
  static_cast<void>(cudaGetLastError());  // the next call must not report this failure again
  const StatusCode code = error == cudaErrorNoDevice ? StatusCode::kNotFound : StatusCode::kDevice;
  return Status(code, concat(call, ": ", cudaGetErrorString(error)));
}

}  // namespace

Result<std::vector<CudaDevice>> list_cuda_devices() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error != cudaSuccess) return cuda_failure("cudaGetDeviceCount", error);
  std::vector<CudaDevice> devices;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) return cuda_failure("cudaGetDeviceProperties", error);
    devices.push_back({properties.name, properties.major * 10 + properties.minor,
                       static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return devices;
}

#else

Result<std::vector<CudaDevice>> list_cuda_devices() {
  return Status(StatusCode::kUnsupported, "built without CUDA");
}

#endif

}  // namespace linestate
