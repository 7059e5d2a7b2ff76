#include "cuda/device_pointer.h"

#include "base/message.h"
#ifdef LINESTATE_CUDA
#include "cuda/cuda_api.h"
#endif

namespace linestate {

#ifdef LINESTATE_CUDA

Status check_device_pointer(const char* name, const ConstTensorView& tensor) {
  if (tensor.device.type != DeviceType::kCuda || tensor.data == nullptr) return {};
  const CudaDeviceGuard guard(tensor.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  cudaPointerAttributes found{};
  LINESTATE_CUDA_CALL("cudaPointerGetAttributes", cudaPointerGetAttributes(&found, tensor.data));
  const bool elsewhere = found.type == cudaMemoryTypeDevice && found.device != tensor.device.index;
  if (found.type != cudaMemoryTypeUnregistered && !elsewhere) return {};
  return invalid_argument(name, ": expected memory of ", device_name(tensor.device), ", got ",
                          elsewhere ? concat("memory of cuda:", found.device) : "host memory");
}

#else

Status check_device_pointer(const char* name, const ConstTensorView& tensor) {
  if (tensor.device.type != DeviceType::kCuda) return {};
  return Status(
      StatusCode::kUnsupported,
      concat(name, ": expected memory on the cpu, built without CUDA, got ", describe(tensor)));
}

#endif

}  // namespace linestate
