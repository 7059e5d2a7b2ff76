#include "cli/replay/device_copies.h"

#include <utility>

namespace linestate::cli {

Result<ConstTensorView> DeviceCopies::put(const ConstTensorView& host) {
  if (!host.defined() || device_.type == DeviceType::kCpu) return host;
  const int64_t bytes = host.num_elements() * dtype_bytes(host.dtype);
  Result<DeviceMemory> memory = DeviceMemory::allocate(device_, bytes);
  if (!memory.ok()) return memory.status();
  LINESTATE_RETURN_IF_ERROR(copy_bytes({memory->data(), device_}, {host.data, {}}, bytes));
  memory_.push_back(std::move(memory).value());
  ConstTensorView view = host;
  view.data = memory_.back().data();
  view.device = device_;
  return view;
}

Result<ConstTensorView> HostLook::at(const ConstTensorView& view, void* stream) {
  if (view.device.type == DeviceType::kCpu) return view;
  const int64_t bytes = view.num_elements() * dtype_bytes(view.dtype);
  bytes_.resize(static_cast<size_t>(bytes));
  LINESTATE_RETURN_IF_ERROR(
      copy_bytes({bytes_.data(), {}}, {view.data, view.device}, bytes, stream));
  ConstTensorView host = view;
  host.data = bytes_.data();
  host.device = {};
  return host;
}

}  // namespace linestate::cli
