// Device memory as the command line needs it: weights put there once, tensors fetched to look at.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "linestate/device_memory.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate::cli {

/// Copies of host tensors on a device; on the CPU the tensors themselves.
class DeviceCopies {
 public:
  explicit DeviceCopies(Device device = {}) : device_(device) {}
  /// `host` where the device reads it; undefined stays undefined. REQUIRES: contiguous, and that
  /// `host` outlives this on the CPU. Errors: as DeviceMemory::allocate and copy_bytes.
  Result<ConstTensorView> put(const ConstTensorView& host);

 private:
  Device device_;
  std::deque<DeviceMemory> memory_;
};

/// One tensor at a time on the host.
class HostLook {
 public:
  /// `view` itself on the CPU; else a copy that the next look replaces, behind the work queued on
  /// `stream`. REQUIRES: contiguous up to the order of its dimensions.
  Result<ConstTensorView> at(const ConstTensorView& view, void* stream);

 private:
  std::vector<char> bytes_;
};

}  // namespace linestate::cli
