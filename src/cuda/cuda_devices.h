// The GPUs of this process, asked through the CUDA runtime.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "linestate/status.h"

namespace linestate {

struct CudaDevice {
  std::string name;
  int sm = 0;  // 90 = compute capability 9.0
  int64_t memory_bytes = 0;
};

/// At least one device, in the runtime's order (CUDA_VISIBLE_DEVICES applies). Creates no context.
/// Errors: kUnsupported (built without CUDA), kNotFound (no device), kDevice (no usable driver).
Result<std::vector<CudaDevice>> list_cuda_devices();

/// 90 for compute capability 9.0, 0 for no such device. Asks the runtime once a device.
int cuda_architecture(int32_t device);

}  // namespace linestate
