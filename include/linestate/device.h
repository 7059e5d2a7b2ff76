// What this process can run on. Needs no GPU, no driver and no CUDA in the build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "linestate/tensor.h"

namespace linestate {

struct DeviceInfo {
  Device device{};
  std::string name;      // "AMD EPYC 7763 64-Core Processor", "NVIDIA H200"
  int32_t threads = 0;   // CPU: threads an operator uses when ExecContext::num_threads is 0
  std::string features;  // CPU: vector extensions, "avx2 fma"; CUDA: "sm_90"
  std::string simd;      // CPU: what the `cpu` kernels run with, "AVX2", "AVX3" (AVX-512); else ""
  int64_t memory_bytes = 0;  // of the whole device; 0 when the system does not say
};

/// The CPU first, then every CUDA device in the order of its index. Never fails.
std::vector<DeviceInfo> list_devices();

/// Why list_devices() has no CUDA device: "built without CUDA", or the failed call and its text.
/// Empty when it has one.
std::string cuda_note();

}  // namespace linestate
