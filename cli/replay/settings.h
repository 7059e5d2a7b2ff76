// Options of `linestate replay` as typed, and what they mean once checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/device_choice.h"
#include "cli/replay/drafts.h"
#include "cli/replay/layer_stack.h"
#include "cli/replay/trace.h"
#include "linestate/model_config.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate::cli {

struct ReplayOptions {
  std::string trace;
  std::string model = "tiny";
  int64_t layers = 0;  // 0 = all linear layers
  std::string device = "auto";
  std::string graphs = "off";
  int64_t limit = 0;  // 0 = the whole trace
  int64_t tp_size = 1;
  int64_t tp_rank = 0;
  std::string state_dtype = "f32";
  std::string io_dtype = "bf16";
  int64_t prefill_budget = 2048;
  int64_t max_running = 16;
  bool max_running_given = false;
  int64_t pool_bytes = 0;
  bool pool_bytes_given = false;
  std::string speculation = "off";
  int64_t draft_length = 4;
  double acceptance = 0.7;
  std::string prefix_cache = "off";
  int64_t cache_bytes = 0;
  bool cache_bytes_given = false;
  int64_t replay_ring = 1;
  std::string replay_dtype = "f32";
  double verify = 0.0;
  std::string profile = "mixed";
  double speed = 0.0;
  int64_t threads = 0;  // 0 = all
  std::string kernel = "auto";
  int64_t seed = 0;
  bool json = false;
  std::string plot;  // empty = none
};

struct ReplaySettings {
  ReplayOptions options;
  DeviceChoice device;
  bool graphs = false;
  ModelConfig model;  // whole model, first `layers` linear layers
  StackOptions stack;
  DType state_dtype = DType::kF32;
  DType io_dtype = DType::kBF16;
  SpeculationOptions speculation;
  bool prefix_cache = false;
  DType replay_dtype = DType::kF32;
  int threads = 1;
  std::vector<TraceRequest> trace;
};

/// f32, bf16 or f16. Errors: kInvalidArgument naming the option and the choices.
Result<DType> parse_dtype(std::string_view option, std::string_view name);
/// Known to any kernel table, or "auto". Errors: kNotFound listing the names.
Status check_kernel_name(const std::string& name);
/// The preset, cut to `layers`. Errors: kNotFound listing the presets, kInvalidArgument.
Result<ModelConfig> resolve_model(const std::string& name, int64_t layers);
/// Checks every option, then reads the trace. Errors name the option, what was expected, what came.
Result<ReplaySettings> resolve_settings(const ReplayOptions& options);

}  // namespace linestate::cli
