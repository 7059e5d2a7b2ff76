// What device_memory.cc and device_staging.cc share: which devices there are, and plain memory.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "base/int_math.h"
#include "base/message.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate {

inline bool on_cpu(Device device) { return device.type == DeviceType::kCpu; }

/// kUnsupported, for a device that this library or this build has no memory on.
inline Status no_such_device(Device device) {
  if (device.type == DeviceType::kCuda) {
    return Status(StatusCode::kUnsupported, "built without CUDA");
  }
  return Status(StatusCode::kUnsupported,
                concat("device: expected cpu or cuda, got ", device_name(device)));
}

/// The arguments of an allocation or a copy.
inline Status check_bytes_on(Device device, int64_t bytes) {
  if (bytes < 0) return invalid_argument("bytes: expected >= 0, got ", bytes);
  if (device.type == DeviceType::kExternal) return no_such_device(device);
  return {};
}

inline Status no_memory_of(const char* kind, Device device, int64_t bytes) {
  return Status(StatusCode::kResourceExhausted,
                concat("cannot allocate ", bytes, " bytes ", kind, " ", device_name(device)));
}

/// Plain memory for std::free, aligned as CUDA aligns its own; null when there is none.
inline void* allocate_plain(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  if (bytes > INT64_MAX - kAlignment) return nullptr;
  return std::aligned_alloc(kAlignment, static_cast<size_t>(round_up(bytes, kAlignment)));
}

}  // namespace linestate
