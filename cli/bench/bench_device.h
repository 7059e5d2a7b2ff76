// Where a bench runs: the device's memory, clock and roofs. Everything else in cli/bench knows
// tensors only through this, so another device is another class here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cli/bench/cpu_roofs.h"
#include "linestate/exec_context.h"
#include "linestate/status.h"
#include "linestate/tensor.h"
#include "testing/host_tensor.h"

namespace linestate::cli {

/// What the device reaches on work that does nothing but one thing, measured in this run.
struct DeviceRoofs {
  int32_t threads = 1;                 // CPU threads that took part; 1 on other devices
  double copy_bytes_per_second = 0.0;  // bytes read + bytes written, blocks beyond every cache
  double read_write_bytes_per_second = 0.0;  // the same in place; 0 = not measured
  double flops_per_second = 0.0;             // f32 multiply-add, two operations each
  int32_t sm_mhz = 0;                        // of a GPU while it does that; 0 = unknown
  int32_t memory_mhz = 0;
  double launch_seconds = 0.0;  // of the host to queue a kernel that does nothing
};

/// A tensor and the device memory that it owns.
struct BenchTensor {
  std::shared_ptr<void> memory;
  TensorView view;
};

class BenchDevice {
 public:
  virtual ~BenchDevice() = default;

  virtual Device device() const = 0;
  /// Calls take other memory each time and come back to it after at least so many bytes: more than
  /// the cache that all work shares.
  virtual int64_t rotation_bytes() const = 0;
  /// Whether inputs and outputs rotate as states do.
  virtual bool rotates_tokens() const { return false; }
  /// Whether calls are captured in a graph and the graph is timed.
  virtual bool times_graphs() const { return false; }
  /// Threads that a request for `threads` means: 0 = all.
  virtual int32_t resolve_threads(int32_t threads) const = 0;
  /// The context of a call, without workspace.
  virtual ExecContext context(int32_t threads) const = 0;

  /// Zeroes, aligned to 64 bytes, freed with the last copy. Errors: kResourceExhausted.
  virtual Result<std::shared_ptr<void>> allocate(int64_t bytes) = 0;
  virtual Status upload(void* to, const void* from, int64_t bytes) = 0;
  /// Seconds that `work` takes by the device's clock, all of it done at the end.
  virtual Result<double> time(const std::function<Status()>& work) = 0;
  /// Measures for about `seconds`.
  virtual Result<DeviceRoofs> roofs(int32_t threads, double seconds) = 0;

  /// A zero-filled tensor.
  Result<BenchTensor> make(DType dtype, std::initializer_list<int64_t> shape);
  /// A copy of a host tensor.
  Result<BenchTensor> place(const testing::HostTensor& tensor);
  /// N(mean, scale), the same values in every run; they repeat, on the CPU after 65 536 elements.
  Result<BenchTensor> normal(DType dtype, std::initializer_list<int64_t> shape, double scale = 1.0,
                             double mean = 0.0);
  /// The same into memory that somebody else owns. REQUIRES: contiguous.
  virtual Status write_normal(const TensorView& view, double scale, double mean);
};

/// `clock` is for the CPU; a GPU has its own.
Result<std::unique_ptr<BenchDevice>> make_bench_device(Device device,
                                                       BenchClock clock = BenchClock::kWall);
Result<std::unique_ptr<BenchDevice>> make_gpu_bench_device(Device device);

}  // namespace linestate::cli
