// Memory and streams of a device for callers that have no CUDA headers of their own: pools, the
// command line, tests. Everything works for the CPU too, so that one code path serves both. No
// operator calls any of this: operators allocate, copy and wait for nothing.
//
// A stream is an opaque handle (CUDA: cudaStream_t; null = the default stream; unused on the CPU).
// The calling thread's current CUDA device is set as needed and put back.
//
// Errors of every function: kUnsupported (built without CUDA, an external device),
// kInvalidArgument, kResourceExhausted (bytes asked, named), kDevice (the failed call, its text).
#pragma once

#include <cstdint>
#include <utility>

#include "linestate/exec_context.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate {

/// Bytes on one device, owned. Aligned to 256; contents undefined. CUDA: plain cudaMalloc.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Zero bytes give a null pointer.
  static Result<DeviceMemory> allocate(Device device, int64_t bytes);

  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  /// Waits for nothing: whoever frees memory that a stream still uses synchronises first.
  ~DeviceMemory();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  void swap(DeviceMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
  }
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Device device_{};
};

/// One side of a copy.
template <typename Void>
struct BasicPlace {
  Void* data;
  Device device{};
};
using Place = BasicPlace<void>;
using ConstPlace = BasicPlace<const void>;

/// Copies `bytes`, ordered behind earlier work on `stream`, which belongs to the CUDA side (the
/// destination's when both are CUDA). Returns when host memory on either side may be used or
/// reused; a copy from device to device returns at once. Overlapping ranges are the caller's fault.
Status copy_bytes(Place dst, ConstPlace src, int64_t bytes, void* stream = nullptr);

/// Sets every byte to `value`, ordered on `stream`; may return before it is done.
Status fill_bytes(Place dst, uint8_t value, int64_t bytes, void* stream = nullptr);

/// Waits until all work on `stream` is done, and reports what went wrong in it.
Status synchronize(Device device, void* stream = nullptr);

/// A stream of its own, which waits for no other one.
class DeviceStream {
 public:
  DeviceStream() = default;
  /// On the CPU the handle is null.
  static Result<DeviceStream> create(Device device);

  DeviceStream(DeviceStream&& other) noexcept { swap(other); }
  DeviceStream& operator=(DeviceStream&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceStream();

  void* handle() const { return handle_; }
  Device device() const { return device_; }

 private:
  void swap(DeviceStream& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(device_, other.device_);
  }
  void* handle_ = nullptr;
  Device device_{};
};

/// A DeviceStatus that operators on `device` can write: host memory for the CPU, device memory for
/// CUDA. Device code updates it with atomics; the host sees it only through read().
class DeviceStatusBlock {
 public:
  DeviceStatusBlock() = default;
  /// Clean. Uses the default stream once.
  static Result<DeviceStatusBlock> create(Device device);

  /// For ExecContext::status. Never dereference it on the host unless the device is the CPU.
  DeviceStatus* get() const { return static_cast<DeviceStatus*>(memory_.data()); }
  /// Waits for the work queued on `stream` and copies the flags to `out`.
  Status read(DeviceStatus& out, void* stream = nullptr) const;
  /// Clean again, behind the work queued on `stream`.
  Status reset(void* stream = nullptr);

 private:
  DeviceMemory memory_;
};

}  // namespace linestate
