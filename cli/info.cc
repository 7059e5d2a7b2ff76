#include "cli/info.h"

#include <cstdio>
#include <string>
#include <utility>

#include "cli/exit_codes.h"
#include "cli/report/report.h"
#include "linestate/device.h"
#include "linestate/kernel_info.h"
#include "linestate/model_config.h"
#include "linestate/state_pool.h"
#include "linestate/version.h"
#include "testing/json.h"

namespace linestate::cli {
namespace {

using testing::Json;

void print_devices() {
  std::printf("\ndevices\n");
  for (const DeviceInfo& info : list_devices()) {
    std::string text = info.name;
    if (info.threads > 0) text += ", " + std::to_string(info.threads) + " threads";
    if (!info.features.empty()) text += ", " + info.features;
    if (!info.simd.empty()) text += ", cpu kernels run as " + info.simd;
    if (info.memory_bytes > 0) text += ", " + bytes_text(info.memory_bytes);
    std::printf("  %-8s %s\n", device_name(info.device).c_str(), text.c_str());
  }
  const std::string note = cuda_note();
  if (!note.empty()) std::printf("  %-8s none: %s\n", "cuda", note.c_str());
}

void print_kernels() {
  std::printf("\nkernels, in the order auto tries them\n");
  for (const KernelInfo& info : list_kernels()) {
    std::printf("  %-22s %-10s %-6s %s\n", info.op.c_str(), info.kernel.c_str(),
                info.device.c_str(), info.summary.c_str());
  }
}

std::string layers_text(const ModelConfig& model) {
  int64_t kda = 0;
  for (const LayerSpec& layer : model.linear_layers) kda += layer.kind == LayerKind::kKda ? 1 : 0;
  const int64_t lightning = static_cast<int64_t>(model.linear_layers.size()) - kda;
  std::string text;
  if (kda > 0) text += std::to_string(kda) + " kda";
  if (lightning > 0) text += (text.empty() ? "" : " + ") + std::to_string(lightning) + " lightning";
  return text + " of " + std::to_string(model.num_layers);
}

Status print_models() {
  std::printf(
      "\nmodels                 layers                     bytes per slot: state f32"
      "           bf16 or f16   (windows bf16)\n");
  for (const std::string& name : model_preset_names()) {
    const Result<ModelConfig> model = model_preset(name);
    if (!model.ok()) return model.status();
    const int64_t f32 = bytes_per_slot(make_pool_spec(*model, DType::kF32, DType::kBF16));
    const int64_t half = bytes_per_slot(make_pool_spec(*model, DType::kBF16, DType::kBF16));
    std::printf("  %-20s %-28s %13s (%s)  %13s (%s)\n", name.c_str(), layers_text(*model).c_str(),
                count_text(f32).c_str(), bytes_text(f32).c_str(), count_text(half).c_str(),
                bytes_text(half).c_str());
  }
  return {};
}

Json device_json(const DeviceInfo& info) {
  Json json = Json::object();
  json.set("device", device_name(info.device));
  json.set("name", info.name);
  json.set("threads", info.threads);
  json.set("features", info.features);
  json.set("memory_bytes", info.memory_bytes);
  return json;
}

Json kernel_json(const KernelInfo& info) {
  Json json = Json::object();
  json.set("op", info.op);
  json.set("kernel", info.kernel);
  json.set("device", info.device);
  json.set("summary", info.summary);
  return json;
}

Result<Json> model_json(const std::string& name) {
  const Result<ModelConfig> model = model_preset(name);
  if (!model.ok()) return model.status();
  Json json = Json::object();
  json.set("name", name);
  json.set("layers", layers_text(*model));
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    json.set("bytes_per_slot_" + std::string(dtype_name(dtype)),
             bytes_per_slot(make_pool_spec(*model, dtype, DType::kBF16)));
  }
  return json;
}

Status print_json() {
  Json::Array devices, kernels, models;
  for (const DeviceInfo& info : list_devices()) devices.push_back(device_json(info));
  for (const KernelInfo& info : list_kernels()) kernels.push_back(kernel_json(info));
  for (const std::string& name : model_preset_names()) {
    Result<Json> model = model_json(name);
    if (!model.ok()) return model.status();
    models.push_back(std::move(model).value());
  }
  Json json = Json::object();
  json.set("version", version_string());
  json.set("numerics", kNumericsVersion);
  json.set("build", build_description());
  json.set("devices", std::move(devices));
  json.set("kernels", std::move(kernels));
  json.set("models", std::move(models));
  std::printf("%s\n", testing::dump_json(json, true).c_str());
  return {};
}

}  // namespace

int run_info(bool as_json) {
  if (as_json) {
    const Status status = print_json();
    return status.ok() ? kOkExitCode : fail(status);
  }
  std::printf("linestate %s (numerics %d)\nbuild: %s\n", version_string(), kNumericsVersion,
              build_description());
  print_devices();
  print_kernels();
  const Status status = print_models();
  return status.ok() ? kOkExitCode : fail(status);
}

}  // namespace linestate::cli
