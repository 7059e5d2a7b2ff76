#include "cuda/cuda_devices.h"

#ifdef LINESTATE_CUDA
#include <array>
#include <atomic>

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

int cuda_architecture(int32_t device) {
  static std::array<std::atomic<int>, 64> known{};  // 0 = not asked yet
  if (device < 0 || device >= static_cast<int32_t>(known.size())) return 0;
  std::atomic<int>& slot = known[static_cast<size_t>(device)];
  if (const int sm = slot.load(std::memory_order_relaxed); sm != 0) return sm;
  int major = 0;
  int minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  slot.store(10 * major + minor, std::memory_order_relaxed);
  return 10 * major + minor;
}

#else

int cuda_architecture(int32_t) { return 0; }

Result<std::vector<CudaDevice>> list_cuda_devices() {
  return Status(StatusCode::kUnsupported, "built without CUDA");
}

#endif

}  // namespace linestate
