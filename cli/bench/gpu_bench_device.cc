// A GPU to measure on, through public headers and testing/gpu_probe.h.
#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "cli/bench/bench_device.h"
#include "linestate/device_memory.h"
#include "testing/fill.h"
#include "testing/gpu_probe.h"

namespace linestate::cli {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kChunkBytes = int64_t{64} << 20;
// Inputs, outputs and states of one turn of the rotation, in halves of the L2: 2.5 times.
constexpr int64_t kHalfCaches = 5;
// 8 times a prime: no two tokens begin at the same place of the pattern, and copies stay aligned.
constexpr int64_t kPatternElements = int64_t{8} * 131071;
constexpr int64_t kRoofBytes = int64_t{2} << 30;
constexpr int64_t kRoofPasses = 9;  // of one kind; their median counts
constexpr int kLaunchRounds = 9;
constexpr int kLaunches = 64;
constexpr int kClockPasses = 300;  // of multiply-adds, to be busy while the clocks are read

class GpuBenchDevice final : public BenchDevice {
 public:
  GpuBenchDevice(Device device, DeviceStream stream, int64_t l2_bytes)
      : device_(device), stream_(std::move(stream)), l2_bytes_(l2_bytes) {}

  Device device() const override { return device_; }
  int64_t rotation_bytes() const override { return kHalfCaches * l2_bytes_ / 2; }
  bool rotates_tokens() const override { return true; }
  bool times_graphs() const override { return true; }
  int32_t resolve_threads(int32_t) const override { return 1; }

  ExecContext context(int32_t) const override {
    ExecContext context;
    context.device = device_;
    context.stream = stream_.handle();
    return context;
  }

  Result<std::shared_ptr<void>> allocate(int64_t bytes) override;

  Status upload(void* to, const void* from, int64_t bytes) override {
    return copy_bytes({to, device_}, {from, {}}, bytes, stream_.handle());
  }

  Result<double> time(const std::function<Status()>& work) override {
    LINESTATE_RETURN_IF_ERROR(synchronize(device_, stream_.handle()));
    const double begin = clock_seconds(BenchClock::kWall);
    LINESTATE_RETURN_IF_ERROR(work());
    LINESTATE_RETURN_IF_ERROR(synchronize(device_, stream_.handle()));
    return clock_seconds(BenchClock::kWall) - begin;
  }

  Result<DeviceRoofs> roofs(int32_t threads, double seconds) override;
  Status write_normal(const TensorView& view, double scale, double mean) override;

 private:
  // Small tensors share one allocation: a rotation has thousands of them.
  struct Chunk {
    DeviceMemory memory;
    int64_t used = 0;
  };
  Result<DeviceMemory*> pattern(DType dtype, double scale, double mean);
  template <typename Queue>
  Result<double> median_seconds(const Queue& queue);
  Result<double> launch_seconds();

  Device device_;
  DeviceStream stream_;
  int64_t l2_bytes_;
  std::weak_ptr<Chunk> open_;
  std::map<std::array<double, 3>, DeviceMemory> patterns_;
};

Result<std::shared_ptr<void>> GpuBenchDevice::allocate(int64_t bytes) {
  const int64_t rounded = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  std::shared_ptr<Chunk> chunk = open_.lock();
  if (!chunk || chunk->used + rounded > chunk->memory.bytes()) {
    Result<DeviceMemory> memory = DeviceMemory::allocate(device_, std::max(rounded, kChunkBytes));
    if (!memory.ok()) return memory.status();
    chunk = std::make_shared<Chunk>();
    chunk->memory = std::move(memory).value();
    open_ = chunk;
  }
  void* data = static_cast<char*>(chunk->memory.data()) + chunk->used;
  chunk->used += rounded;
  LINESTATE_RETURN_IF_ERROR(fill_bytes({data, device_}, 0, rounded, stream_.handle()));
  return std::shared_ptr<void>(std::move(chunk), data);
}

Result<DeviceMemory*> GpuBenchDevice::pattern(DType dtype, double scale, double mean) {
  const std::array<double, 3> key{static_cast<double>(dtype), scale, mean};
  const auto found = patterns_.find(key);
  if (found != patterns_.end()) return &found->second;
  testing::HostTensor host(dtype, {kPatternElements});
  testing::fill_normal(host, 1, scale, mean);
  Result<DeviceMemory> memory = DeviceMemory::allocate(device_, host.bytes());
  if (!memory.ok()) return memory.status();
  LINESTATE_RETURN_IF_ERROR(upload(memory->data(), host.data(), host.bytes()));
  return &patterns_.emplace(key, std::move(memory).value()).first->second;
}

Status GpuBenchDevice::write_normal(const TensorView& view, double scale, double mean) {
  const Result<DeviceMemory*> from = pattern(view.dtype, scale, mean);
  if (!from.ok()) return from.status();
  const int64_t bytes = view.num_elements() * dtype_bytes(view.dtype);
  char* to = static_cast<char*>(view.data);
  const void* source = (*from)->data();
  int64_t done = 0;
  while (done < bytes) {  // the first copy is the pattern, every further one all that is there
    const int64_t size = std::min(done == 0 ? (*from)->bytes() : done, bytes - done);
    LINESTATE_RETURN_IF_ERROR(
        copy_bytes({to + done, device_}, {source, device_}, size, stream_.handle()));
    done += size;
    source = to;
  }
  return {};
}

template <typename Queue>
Result<double> GpuBenchDevice::median_seconds(const Queue& queue) {
  Result<testing::StreamMarks> marks = testing::StreamMarks::create(device_, kRoofPasses + 1);
  if (!marks.ok()) return marks.status();
  LINESTATE_RETURN_IF_ERROR(queue());
  for (int64_t i = 0; i <= kRoofPasses; ++i) {
    LINESTATE_RETURN_IF_ERROR(marks->set(i, stream_.handle()));
    if (i < kRoofPasses) LINESTATE_RETURN_IF_ERROR(queue());
  }
  LINESTATE_RETURN_IF_ERROR(synchronize(device_, stream_.handle()));
  std::vector<double> seconds;
  for (int64_t i = 0; i < kRoofPasses; ++i) {
    const Result<double> pass = marks->seconds(i, i + 1);
    if (!pass.ok()) return pass.status();
    seconds.push_back(*pass);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

// As measure_graph times the host: many launches into an idle stream, the median of some rounds.
Result<double> GpuBenchDevice::launch_seconds() {
  std::vector<double> rounds;
  for (int round = 0; round < kLaunchRounds; ++round) {
    LINESTATE_RETURN_IF_ERROR(synchronize(device_, stream_.handle()));
    const double begin = clock_seconds(BenchClock::kWall);
    for (int i = 0; i < kLaunches; ++i) {
      LINESTATE_RETURN_IF_ERROR(testing::queue_nothing(stream_.handle()));
    }
    rounds.push_back((clock_seconds(BenchClock::kWall) - begin) / kLaunches);
  }
  LINESTATE_RETURN_IF_ERROR(synchronize(device_, stream_.handle()));
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

Result<DeviceRoofs> GpuBenchDevice::roofs(int32_t, double) {
  Result<DeviceMemory> memory = DeviceMemory::allocate(device_, kRoofBytes);
  if (!memory.ok()) return memory.status();
  char* data = static_cast<char*>(memory->data());
  void* stream = stream_.handle();
  LINESTATE_RETURN_IF_ERROR(fill_bytes({data, device_}, 0x5a, kRoofBytes, stream));
  DeviceRoofs roofs;
  const Result<double> copy = median_seconds([&] {
    return copy_bytes({data + kRoofBytes / 2, device_}, {data, device_}, kRoofBytes / 2, stream);
  });
  if (!copy.ok()) return copy.status();
  roofs.copy_bytes_per_second = static_cast<double>(kRoofBytes) / *copy;
  const Result<double> in_place =
      median_seconds([&] { return testing::queue_read_write(device_, data, kRoofBytes, stream); });
  if (!in_place.ok()) return in_place.status();
  roofs.read_write_bytes_per_second = 2.0 * static_cast<double>(kRoofBytes) / *in_place;
  double operations = 0.0;
  const Result<double> adds = median_seconds([&] {
    const Result<double> queued = testing::queue_multiply_adds(device_, data, stream);
    if (queued.ok()) operations = *queued;
    return queued.status();
  });
  if (!adds.ok()) return adds.status();
  roofs.flops_per_second = operations / *adds;
  for (int i = 0; i < kClockPasses; ++i) {
    const Result<double> queued = testing::queue_multiply_adds(device_, data, stream);
    if (!queued.ok()) return queued.status();
  }
  const Result<testing::GpuFacts> facts = testing::gpu_facts(device_);
  if (!facts.ok()) return facts.status();
  const Result<double> launch = launch_seconds();
  if (!launch.ok()) return launch.status();
  roofs.launch_seconds = *launch;
  roofs.sm_mhz = facts->sm_mhz;
  roofs.memory_mhz = facts->memory_mhz;
  return roofs;
}

}  // namespace

Result<std::unique_ptr<BenchDevice>> make_gpu_bench_device(Device device) {
  Result<DeviceStream> stream = DeviceStream::create(device);
  if (!stream.ok()) return stream.status();
  const Result<testing::GpuFacts> facts = testing::gpu_facts(device);
  if (!facts.ok()) return facts.status();
  return std::unique_ptr<BenchDevice>(
      std::make_unique<GpuBenchDevice>(device, std::move(stream).value(), facts->l2_bytes));
}

}  // namespace linestate::cli
