// The option --device of every verb that runs operators.
#pragma once

#include <string>

#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate::cli {

struct DeviceChoice {
  Device device{};
  std::string text;  // "cpu", "cuda:0 (NVIDIA H200)"; with auto also why not a GPU
};

/// `option` is cpu, cuda, cuda:I or auto. auto takes the first GPU that kernels here run on (sm_80
/// and up), unless `kernel` names one that only the CPU has; else the CPU.
/// Errors: kInvalidArgument (another word, no such GPU), kUnsupported (built without CUDA).
Result<DeviceChoice> choose_device(const std::string& option, const std::string& kernel);

}  // namespace linestate::cli
