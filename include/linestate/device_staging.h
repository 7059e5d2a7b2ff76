// What a caller without CUDA headers needs to keep a stream busy: page-locked host memory, copies
// that return at once, events, captured graphs, and a look at a DeviceStatus that never waits.
// On the CPU everything works too and is done when the call returns, so one code path serves both.
//
// Errors of every function, unless it says otherwise: kUnsupported (built without CUDA, an external
// device), kInvalidArgument, kResourceExhausted, kDevice (the failed call and its text). The
// calling thread's current CUDA device is set as needed and put back.
#pragma once

#include <cstdint>
#include <utility>

#include "linestate/device_memory.h"
#include "linestate/exec_context.h"
#include "linestate/status.h"

namespace linestate {

/// Host memory that a device reads and writes by itself, owned. Aligned to 256; contents undefined.
/// CUDA: page-locked. CPU: plain memory.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  /// `device` is the one that copies from and to it. Zero bytes give a null pointer.
  static Result<PinnedMemory> allocate(Device device, int64_t bytes);

  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  /// Waits for nothing, as ~DeviceMemory.
  ~PinnedMemory();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(PinnedMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
  }
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Device device_{};
};

/// As copy_bytes, but returns at once: both sides must stay as they are until `stream` has passed
/// the copy. Host memory that is not page-locked may make the call wait. May be captured.
Status copy_bytes_async(Place dst, ConstPlace src, int64_t bytes, void* stream = nullptr);

/// A point of a stream that can be asked for and waited for.
class DeviceEvent {
 public:
  DeviceEvent() = default;
  static Result<DeviceEvent> create(Device device);

  DeviceEvent(DeviceEvent&& other) noexcept { swap(other); }
  DeviceEvent& operator=(DeviceEvent&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceEvent();

  /// Moves the event behind the work queued on `stream` so far.
  Status record(void* stream = nullptr);
  /// Blocks until the stream has passed the event; an event never recorded has passed.
  Status wait() const;
  /// Never blocks. Work that failed counts as passed; synchronize() reports it.
  bool done() const { return passed(handle_); }

  /// For StatePool::retire: SlotEvent{DeviceEvent::passed, event.handle()}. `handle` may also be a
  /// cudaEvent_t of the engine's own; null has passed.
  static bool passed(void* handle);
  void* handle() const { return handle_; }

 private:
  void swap(DeviceEvent& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(device_, other.device_);
  }
  void* handle_ = nullptr;
  Device device_{};
};

/// Reads a DeviceStatus without stopping the stream: start() now and then, ready() until it is
/// true.
class StatusPoll {
 public:
  static Result<StatusPoll> create(Device device);

  /// Queues a copy of the block behind the work on `stream`. REQUIRES: no start() is pending.
  Status start(const DeviceStatus* status, void* stream = nullptr);
  /// Never blocks. True once after each start(), when the copy is there; `out` is filled then.
  bool ready(DeviceStatus& out);

 private:
  Device device_{};
  PinnedMemory staging_;
  DeviceEvent copied_;
  bool pending_ = false;
};

/// Work of a stream, recorded once and started again with one call (a CUDA graph). What kernels
/// read from device memory is read anew at every launch(); addresses, shapes and grids stay.
class DeviceGraph {
 public:
  DeviceGraph() = default;
  DeviceGraph(DeviceGraph&& other) noexcept { swap(other); }
  DeviceGraph& operator=(DeviceGraph&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceGraph();

  /// Records what `stream` (not the default stream) is given until end_capture(); nothing runs.
  /// Errors: also kUnsupported on the CPU.
  static Status begin_capture(Device device, void* stream);
  /// Ends the recording on every path, also when something in it failed.
  static Result<DeviceGraph> end_capture(Device device, void* stream);
  /// Whether `stream` is between the two.
  static bool capturing(Device device, void* stream);

  /// Errors: also kFailedPrecondition (no graph).
  Status launch(void* stream) const;
  bool defined() const { return handle_ != nullptr; }
  int64_t num_nodes() const { return num_nodes_; }

 private:
  void swap(DeviceGraph& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(device_, other.device_);
    std::swap(num_nodes_, other.num_nodes_);
  }
  void* handle_ = nullptr;
  Device device_{};
  int64_t num_nodes_ = 0;
};

}  // namespace linestate
