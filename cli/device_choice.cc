#include "cli/device_choice.h"

#include <charconv>
#include <optional>
#include <vector>

#include "linestate/device.h"
#include "linestate/kernel_info.h"

namespace linestate::cli {
namespace {

constexpr int kLeastSm = 80;

int sm_of(const DeviceInfo& info) {
  const size_t at = info.features.find("sm_");
  int sm = 0;
  if (at == std::string::npos) return sm;
  const char* begin = info.features.data() + at + 3;
  std::from_chars(begin, info.features.data() + info.features.size(), sm);
  return sm;
}

bool kernel_runs_on_cuda(const std::string& kernel) {
  if (kernel.empty() || kernel == kAutoKernel) return true;
  for (const KernelInfo& info : list_kernels()) {
    if (info.kernel == kernel && info.device == device_type_name(DeviceType::kCuda)) return true;
  }
  return false;
}

DeviceChoice gpu(const DeviceInfo& info) {
  return {info.device, device_name(info.device) + " (" + info.name + ")"};
}

DeviceChoice choose_automatically(const std::string& kernel) {
  DeviceChoice cpu{{}, "cpu"};
  if (!kernel_runs_on_cuda(kernel)) {
    cpu.text += " (kernel " + kernel + " runs nowhere else)";
    return cpu;
  }
  for (const DeviceInfo& info : list_devices()) {
    if (info.device.type == DeviceType::kCuda && sm_of(info) >= kLeastSm) return gpu(info);
  }
  const std::string note = cuda_note();
  cpu.text += " (no usable GPU: " + (note.empty() ? "all below sm_80" : note) + ")";
  return cpu;
}

// The index behind "cuda" or "cuda:I".
std::optional<int32_t> parse_index(const std::string& option) {
  if (option == "cuda") return 0;
  if (!option.starts_with("cuda:") || option.size() == 5) return {};
  int32_t index = 0;
  const char* end = option.data() + option.size();
  const auto [stop, error] = std::from_chars(option.data() + 5, end, index);
  if (error != std::errc() || stop != end || index < 0) return {};
  return index;
}

}  // namespace

Result<DeviceChoice> choose_device(const std::string& option, const std::string& kernel) {
  if (option == "cpu") return DeviceChoice{{}, "cpu"};
  if (option == "auto") return choose_automatically(kernel);
  const std::optional<int32_t> index = parse_index(option);
  if (!index) {
    return Status(StatusCode::kInvalidArgument,
                  "--device: expected cpu, cuda, cuda:I or auto, got " + option);
  }
  int32_t count = 0;
  for (const DeviceInfo& info : list_devices()) {
    if (info.device.type != DeviceType::kCuda) continue;
    if (info.device.index == *index) return gpu(info);
    ++count;
  }
  if (count == 0) {
    return Status(StatusCode::kUnsupported, "--device: expected cpu, got " + option +
                                                ", and there is no GPU: " + cuda_note());
  }
  return Status(StatusCode::kInvalidArgument, "--device: expected cuda:0 to cuda:" +
                                                  std::to_string(count - 1) + ", got " + option);
}

}  // namespace linestate::cli
