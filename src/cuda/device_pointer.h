// Whether the memory behind a view is where the view says.
#pragma once

#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate {

/// Ok for views of other devices, empty ones, and memory that the view's CUDA device can use;
/// kInvalidArgument naming the argument for plain host memory and memory of another GPU.
Status check_device_pointer(const char* name, const ConstTensorView& tensor);

}  // namespace linestate
