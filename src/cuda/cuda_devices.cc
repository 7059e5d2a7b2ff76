#include "cuda/cuda_devices.h"

#ifdef LINESTATE_CUDA
#include "cuda/cuda_api.h"
#endif

namespace linestate {

#ifdef LINESTATE_CUDA

Result<std::vector<CudaDevice>> list_cuda_devices() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error != cudaSuccess) return cuda_status("cudaGetDeviceCount", error);
  std::vector<CudaDevice> devices;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) return cuda_status("cudaGetDeviceProperties", error);
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
