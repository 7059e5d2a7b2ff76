#include "cli/bench/bench_machine.h"

#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>

#include "cli/bench/build_stamp.h"
#include "cli/bench/cpu_roofs.h"
#include "linestate/device.h"
#include "linestate/version.h"
#include "testing/gpu_probe.h"

namespace linestate::cli {
namespace {

using testing::Json;

Json size_or_null(int64_t bytes) { return bytes > 0 ? Json(bytes) : Json(); }

void add_gpu_facts(Device device, Json& machine) {
  const Result<testing::GpuFacts> facts = testing::gpu_facts(device);
  if (!facts.ok()) return;
  machine.set("driver", facts->driver);
  machine.set("cuda_runtime", static_cast<int64_t>(facts->runtime));
  machine.set("multiprocessors", static_cast<int64_t>(facts->multiprocessors));
  machine.set("l2_bytes", facts->l2_bytes);
  machine.set("sm_max_mhz", static_cast<int64_t>(facts->sm_max_mhz));
}

}  // namespace

// The kernel's own table: what sysconf says comes from the processor, which on a virtual machine
// tells of the whole host.
CpuCaches cpu_caches() {
  CpuCaches caches;
  for (int index = 0; index < 8; ++index) {
    const std::string folder =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    int level = 0;
    int64_t size = 0;
    std::string type;
    char unit = 0;
    if (!(std::ifstream(folder + "level") >> level)) break;
    if (!(std::ifstream(folder + "type") >> type) || type == "Instruction") continue;
    if (!(std::ifstream(folder + "size") >> size >> unit)) continue;
    const int64_t bytes = size * (unit == 'K' ? int64_t{1} << 10 : int64_t{1} << 20);
    if (level == 1) caches.l1d = bytes;
    if (level == 2) caches.l2 = bytes;
    if (level == 3) caches.l3 = bytes;
  }
  return caches;
}

Json machine_json(const BenchDevice& device) {
  Json machine = Json::object();
  const std::vector<DeviceInfo> devices = list_devices();
  for (const DeviceInfo& info : devices) {
    if (!(info.device == device.device())) continue;
    machine.set("device", device_name(info.device));
    machine.set("name", info.name);
    machine.set("features", info.features);
    machine.set("memory_bytes", size_or_null(info.memory_bytes));
  }
  if (device.device().type == DeviceType::kCuda) add_gpu_facts(device.device(), machine);
  machine.set("cpu", devices.front().name);
  machine.set("simd", devices.front().simd);
  machine.set("logical_cpus", static_cast<int64_t>(sysconf(_SC_NPROCESSORS_ONLN)));
  machine.set("fma_target", multiply_add_target());
  Json caches = Json::object();
  const CpuCaches sizes = cpu_caches();
  caches.set("l1d", size_or_null(sizes.l1d));
  caches.set("l2", size_or_null(sizes.l2));
  caches.set("l3", size_or_null(sizes.l3));
  machine.set("caches", std::move(caches));
  double load = 0.0;
  machine.set("load_1min", getloadavg(&load, 1) == 1 ? Json(load) : Json());
  return machine;
}

Json build_json() {
  Json build = Json::object();
  build.set("version", version_string());
  build.set("numerics", kNumericsVersion);
  build.set("description", build_description());
  build.set("flags", build_flags());
  build.set("commit", build_commit());
  return build;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  const size_t size = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return std::string(text, size);
}

}  // namespace linestate::cli
