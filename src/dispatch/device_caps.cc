#include <omp.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/message.h"
#include "cpu/simd_target.h"
#include "cuda/cuda_devices.h"
#include "linestate/device.h"

namespace linestate {
namespace {

// Names as Linux prints them; the others of its list say nothing about speed here.
constexpr std::array<std::string_view, 13> kFeatures = {
    "avx2",        "fma",         "f16c",     "avx512f",  "avx512bw", "avx512vl", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "asimd",    "sve"};

std::string known_features(const std::string& flags) {
  std::istringstream words(flags);
  std::string known;
  for (std::string word; words >> word;) {
    for (const std::string_view feature : kFeatures) {
      if (word == feature) known += (known.empty() ? "" : " ") + word;
    }
  }
  return known;
}

DeviceInfo describe_cpu() {
  DeviceInfo cpu;
  cpu.name = "CPU";
  cpu.threads = omp_get_max_threads();
  cpu.simd = simd_target_name();
  cpu.memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  if (cpu.memory_bytes < 0) cpu.memory_bytes = 0;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {  // the first processor's
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) cpu.name = value;
    if (line.starts_with("flags") || line.starts_with("Features")) {
      cpu.features = known_features(value);
    }
  }
  return cpu;
}

}  // namespace

std::vector<DeviceInfo> list_devices() {
  std::vector<DeviceInfo> devices{describe_cpu()};
  const Result<std::vector<CudaDevice>> gpus = list_cuda_devices();
  if (!gpus.ok()) return devices;
  for (const CudaDevice& gpu : gpus.value()) {
    DeviceInfo info;
    info.device = {DeviceType::kCuda, static_cast<int32_t>(devices.size()) - 1};
    info.name = gpu.name;
    info.features = concat("sm_", gpu.sm);
    info.memory_bytes = gpu.memory_bytes;
    devices.push_back(std::move(info));
  }
  return devices;
}

std::string cuda_note() { return list_cuda_devices().status().message(); }

}  // namespace linestate
