#include "cli/bench/bench_device.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cli/bench/bench_machine.h"
#include "testing/fill.h"

namespace linestate::cli {
namespace {

constexpr int64_t kPatternElements = 65536;
// Where the system does not say: larger than most, so that states still leave the cache.
constexpr int64_t kUnknownCacheBytes = int64_t{32} << 20;
constexpr int64_t kCaches = 4;  // times the last-level cache that states rotate over

class CpuBenchDevice final : public BenchDevice {
 public:
  explicit CpuBenchDevice(BenchClock clock) : clock_(clock) {}

  Device device() const override { return {}; }

  int64_t rotation_bytes() const override { return kCaches * last_level_cache_bytes(); }

  int32_t resolve_threads(int32_t threads) const override {
    return threads > 0 ? threads : omp_get_max_threads();
  }

  ExecContext context(int32_t threads) const override {
    ExecContext context;
    context.num_threads = resolve_threads(threads);
    return context;
  }

  Result<std::shared_ptr<void>> allocate(int64_t bytes) override {
    const size_t rounded = (static_cast<size_t>(bytes) + 63) / 64 * 64 + 64;
    void* memory = std::aligned_alloc(64, rounded);
    if (memory == nullptr) {
      return Status(StatusCode::kResourceExhausted,
                    "bench: no memory for a tensor of " + std::to_string(bytes) + " bytes");
    }
    std::memset(memory, 0, rounded);
    return std::shared_ptr<void>(memory, std::free);
  }

  Status upload(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return {};
  }

  Result<double> time(const std::function<Status()>& work) override {
    const double begin = clock_seconds(clock_);
    LINESTATE_RETURN_IF_ERROR(work());
    return clock_seconds(clock_) - begin;
  }

  Result<DeviceRoofs> roofs(int32_t threads, double seconds) override {
    const int32_t used = resolve_threads(threads);
    DeviceRoofs roofs;
    roofs.threads = used;
    roofs.copy_bytes_per_second =
        cpu_copy_bandwidth(used, last_level_cache_bytes(), seconds / 2, clock_);
    roofs.flops_per_second = cpu_multiply_add_peak(used, seconds / 2, clock_);
    return roofs;
  }

 private:
  static int64_t last_level_cache_bytes() {
    const int64_t bytes = cpu_caches().last();
    return bytes > 0 ? bytes : kUnknownCacheBytes;
  }

  BenchClock clock_;
};

}  // namespace

Result<BenchTensor> BenchDevice::make(DType dtype, std::initializer_list<int64_t> shape) {
  BenchTensor tensor;
  tensor.view = TensorView(nullptr, dtype, shape, device());
  Result<std::shared_ptr<void>> memory = allocate(tensor.view.num_elements() * dtype_bytes(dtype));
  if (!memory.ok()) return memory.status();
  tensor.memory = std::move(memory).value();
  tensor.view.data = tensor.memory.get();
  return tensor;
}

Result<BenchTensor> BenchDevice::place(const testing::HostTensor& tensor) {
  const ConstTensorView from = tensor.view();
  Result<std::shared_ptr<void>> memory = allocate(tensor.bytes());
  if (!memory.ok()) return memory.status();
  BenchTensor placed;
  placed.memory = std::move(memory).value();
  placed.view = TensorView(placed.memory.get(), from.dtype, {1}, device());
  placed.view.rank = from.rank;
  placed.view.shape = from.shape;
  placed.view.stride = from.stride;
  LINESTATE_RETURN_IF_ERROR(upload(placed.view.data, from.data, tensor.bytes()));
  return placed;
}

Status BenchDevice::write_normal(const TensorView& view, double scale, double mean) {
  testing::HostTensor pattern(view.dtype, {kPatternElements});
  testing::fill_normal(pattern, 1, scale, mean);
  const int64_t bytes = view.num_elements() * dtype_bytes(view.dtype);
  for (int64_t done = 0; done < bytes; done += pattern.bytes()) {
    LINESTATE_RETURN_IF_ERROR(upload(static_cast<char*>(view.data) + done, pattern.data(),
                                     std::min(pattern.bytes(), bytes - done)));
  }
  return {};
}

Result<BenchTensor> BenchDevice::normal(DType dtype, std::initializer_list<int64_t> shape,
                                        double scale, double mean) {
  Result<BenchTensor> tensor = make(dtype, shape);
  if (!tensor.ok()) return tensor;
  LINESTATE_RETURN_IF_ERROR(write_normal(tensor->view, scale, mean));
  return tensor;
}

Result<std::unique_ptr<BenchDevice>> make_bench_device(Device device, BenchClock clock) {
  if (device.type == DeviceType::kCuda) return make_gpu_bench_device(device);
  return std::unique_ptr<BenchDevice>(std::make_unique<CpuBenchDevice>(clock));
}

}  // namespace linestate::cli
