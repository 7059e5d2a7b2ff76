// What a bench asks a GPU besides running operators: its clock at points of a stream, its name tag,
// and what it reaches on work that does nothing but one thing. In a build without CUDA every
// function returns kUnsupported.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate::testing {

/// Points of a stream, told apart by the device's own clock.
class StreamMarks {
 public:
  static Result<StreamMarks> create(Device device, int64_t count);
  StreamMarks(StreamMarks&& other) noexcept : events_(std::move(other.events_)) {
    other.events_.clear();
  }
  StreamMarks& operator=(StreamMarks&&) = delete;
  ~StreamMarks();

  int64_t count() const { return static_cast<int64_t>(events_.size()); }
  /// Puts mark `index` behind the work queued on `stream`.
  Status set(int64_t index, void* stream);
  /// Seconds from one mark to a later one. REQUIRES: the stream has passed both.
  Result<double> seconds(int64_t from, int64_t to) const;

 private:
  StreamMarks() = default;
  std::vector<void*> events_;
};

struct GpuFacts {
  int64_t l2_bytes = 0;
  int32_t multiprocessors = 0;
  std::string driver;      // "580.159.04"; empty when the driver's library is not there
  int32_t runtime = 0;     // CUDA runtime, 13000 = 13.0
  int32_t sm_mhz = 0;      // now; 0 when unknown
  int32_t memory_mhz = 0;  // now
  int32_t sm_max_mhz = 0;  // what the device may reach
};
/// Clocks are those of this moment: ask while the device is busy.
Result<GpuFacts> gpu_facts(Device device);

/// Queues one pass that reads and writes every 16 bytes of `data` where they lie.
/// REQUIRES: data aligned to 16, bytes a multiple of 16.
Status queue_read_write(Device device, void* data, int64_t bytes, void* stream);

/// Queues a pass of f32 multiply-adds on every unit; `data` takes 4 bytes. Returns its operations.
Result<double> queue_multiply_adds(Device device, void* data, void* stream);

/// Queues a kernel that does nothing: what is left of the cost of a call without the call.
Status queue_nothing(void* stream);

}  // namespace linestate::testing
