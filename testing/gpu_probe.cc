#include "testing/gpu_probe.h"

#ifdef LINESTATE_CUDA
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#endif

namespace linestate::testing {

#ifdef LINESTATE_CUDA

namespace {

Status check(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return Status(StatusCode::kDevice, std::string(call) + ": " + cudaGetErrorString(error));
}

// What is asked of the driver's management library, which is no part of the toolkit's runtime.
struct Nvml {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_bus)(const char*, void**) = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*max_clock)(void*, int, unsigned*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;

  bool load() {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    return library != nullptr && find("nvmlInit_v2", init) && find("nvmlShutdown", shutdown) &&
           find("nvmlDeviceGetHandleByPciBusId_v2", by_bus) &&
           find("nvmlDeviceGetClockInfo", clock) && find("nvmlDeviceGetMaxClockInfo", max_clock) &&
           find("nvmlSystemGetDriverVersion", driver) && init() == 0;
  }

 private:
  template <typename Function>
  bool find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }
};

constexpr int kSmClock = 1;
constexpr int kMemoryClock = 2;

void ask_driver(Device device, GpuFacts& facts) {
  Nvml nvml;
  char text[96] = {};
  void* handle = nullptr;
  if (nvml.load()) {
    const auto read = [&](int (*ask)(void*, int, unsigned*), int which) {
      unsigned mhz = 0;
      return ask(handle, which, &mhz) == 0 ? static_cast<int32_t>(mhz) : 0;
    };
    if (nvml.driver(text, sizeof(text)) == 0) facts.driver = text;
    if (cudaDeviceGetPCIBusId(text, sizeof(text), device.index) == cudaSuccess &&
        nvml.by_bus(text, &handle) == 0) {
      facts.sm_mhz = read(nvml.clock, kSmClock);
      facts.memory_mhz = read(nvml.clock, kMemoryClock);
      facts.sm_max_mhz = read(nvml.max_clock, kSmClock);
    }
    nvml.shutdown();
  }
  if (nvml.library != nullptr) dlclose(nvml.library);
}

}  // namespace

Result<StreamMarks> StreamMarks::create(Device device, int64_t count) {
  LINESTATE_RETURN_IF_ERROR(check("cudaSetDevice", cudaSetDevice(device.index)));
  StreamMarks marks;
  for (int64_t i = 0; i < count; ++i) {
    cudaEvent_t event = nullptr;
    LINESTATE_RETURN_IF_ERROR(check("cudaEventCreate", cudaEventCreate(&event)));
    marks.events_.push_back(event);
  }
  return marks;
}

StreamMarks::~StreamMarks() {
  for (void* event : events_) cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

Status StreamMarks::set(int64_t index, void* stream) {
  return check("cudaEventRecord",
               cudaEventRecord(static_cast<cudaEvent_t>(events_[static_cast<size_t>(index)]),
                               static_cast<cudaStream_t>(stream)));
}

Result<double> StreamMarks::seconds(int64_t from, int64_t to) const {
  float milliseconds = 0.0f;
  const auto event = [&](int64_t i) {
    return static_cast<cudaEvent_t>(events_[static_cast<size_t>(i)]);
  };
  LINESTATE_RETURN_IF_ERROR(
      check("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, event(from), event(to))));
  return 1e-3 * static_cast<double>(milliseconds);
}

Result<GpuFacts> gpu_facts(Device device) {
  GpuFacts facts;
  int value = 0;
  LINESTATE_RETURN_IF_ERROR(
      check("cudaDeviceGetAttribute",
            cudaDeviceGetAttribute(&value, cudaDevAttrL2CacheSize, device.index)));
  facts.l2_bytes = value;
  LINESTATE_RETURN_IF_ERROR(
      check("cudaDeviceGetAttribute",
            cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device.index)));
  facts.multiprocessors = value;
  LINESTATE_RETURN_IF_ERROR(check("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&value)));
  facts.runtime = value;
  ask_driver(device, facts);
  return facts;
}

#else

namespace {

Status without_cuda() {
  return Status(StatusCode::kUnsupported, "gpu: expected a build with CUDA, got one without");
}

}  // namespace

Result<StreamMarks> StreamMarks::create(Device, int64_t) { return without_cuda(); }
StreamMarks::~StreamMarks() = default;
Status StreamMarks::set(int64_t, void*) { return without_cuda(); }
Result<double> StreamMarks::seconds(int64_t, int64_t) const { return without_cuda(); }
Result<GpuFacts> gpu_facts(Device) { return without_cuda(); }
Status queue_read_write(Device, void*, int64_t, void*) { return without_cuda(); }
Result<double> queue_multiply_adds(Device, void*, void*) { return without_cuda(); }
Status queue_nothing(void*) { return without_cuda(); }

#endif

}  // namespace linestate::testing
