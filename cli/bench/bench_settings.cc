#include "cli/bench/bench_settings.h"

#include <algorithm>
#include <cmath>

#include "cli/bench/bench_suite.h"
#include "cli/replay/settings.h"
#include "cli/report/plot_file.h"
#include "linestate/ops/draft_tree.h"
#include "linestate/ops/replay_ring.h"

namespace linestate::cli {
namespace {

Status bad_option(const std::string& option, const std::string& expected, const std::string& got) {
  return Status(StatusCode::kInvalidArgument, option + ": expected " + expected + ", got " + got);
}

Status check_values(const std::string& option, const std::vector<int64_t>& values, int64_t low,
                    int64_t high) {
  for (const int64_t value : values) {
    if (value >= low && value <= high) continue;
    return bad_option(option, std::to_string(low) + " to " + std::to_string(high),
                      std::to_string(value));
  }
  return {};
}

Result<std::vector<BenchOp>> choose_ops(const std::vector<std::string>& names) {
  std::vector<BenchOp> chosen;
  std::string list = "all";
  for (const BenchOp& op : bench_ops()) list += ", " + std::string(op.name);
  for (const std::string& name : names) {
    const size_t before = chosen.size();
    for (const BenchOp& op : bench_ops()) {
      if (name == "all" || name == op.name) chosen.push_back(op);
    }
    if (chosen.size() == before) return bad_option("--op", "one of " + list, name);
  }
  return chosen;
}

struct ModelLayer {
  std::string model;
  int32_t model_layers = 0;
  LayerSpec layer;
};

// The first layer of every kind that each model has.
Result<std::vector<ModelLayer>> choose_layers(const std::vector<std::string>& models) {
  std::vector<ModelLayer> chosen;
  for (const std::string& name : models) {
    const Result<ModelConfig> model = resolve_model(name, 0);
    if (!model.ok()) return model.status();
    for (const LayerKind kind : {LayerKind::kKda, LayerKind::kLightning}) {
      const auto found = std::find_if(model->linear_layers.begin(), model->linear_layers.end(),
                                      [&](const LayerSpec& layer) { return layer.kind == kind; });
      if (found != model->linear_layers.end()) {
        chosen.push_back({name, model->num_layers, *found});
      }
    }
  }
  return chosen;
}

Result<std::vector<RowLayout>> layouts_of(const BenchOp& op, const BenchOptions& options) {
  std::vector<RowLayout> layouts;
  if (op.phase == BenchPhase::kPrompt) {
    for (const std::string& text : options.layouts) {
      Result<RowLayout> layout = parse_layout(text);
      if (!layout.ok()) return layout.status();
      layouts.push_back(std::move(layout).value());
    }
    return layouts;
  }
  const int64_t tokens = op.phase == BenchPhase::kStep ? 1 : options.draft;
  for (const int64_t batch : options.batches) layouts.push_back(uniform_layout(batch, tokens));
  return layouts;
}

Status check_options(const BenchOptions& options) {
  LINESTATE_RETURN_IF_ERROR(check_values("--heads", options.heads, 0, 4096));
  LINESTATE_RETURN_IF_ERROR(check_values("--batch", options.batches, 1, 4096));
  LINESTATE_RETURN_IF_ERROR(check_values("--draft", {options.draft}, 1, kMaxVerifyNodes));
  LINESTATE_RETURN_IF_ERROR(check_values("--threads", options.threads, 0, 1024));
  LINESTATE_RETURN_IF_ERROR(check_values("--ring", {options.ring}, 1, kMaxReplayLength));
  LINESTATE_RETURN_IF_ERROR(check_kernel_name(options.kernel));
  for (const std::string& text : options.layouts) {
    const Result<RowLayout> layout = parse_layout(text);
    if (!layout.ok()) return layout.status();
  }
  if (options.ref != "on" && options.ref != "off") {
    return bad_option("--ref", "on or off", options.ref);
  }
  if (options.clock != "wall" && options.clock != "cpu") {
    return bad_option("--clock", "wall or cpu", options.clock);
  }
  if (options.clock == "cpu" && options.threads != std::vector<int64_t>{1}) {
    return bad_option("--clock", "--threads 1 with cpu, which sees only the calling thread",
                      "other threads");
  }
  if (options.fail_above_given) {
    return bad_option("--fail-above", "--compare with it", "no --compare");
  }
  return options.json.empty() ? Status() : check_writable(options.json);
}

// The layer with the gate that --gate asks for; -5 is the bound of the models that have one.
Result<LayerSpec> with_gate(LayerSpec layer, const std::string& gate) {
  if (gate == "model" || layer.kind != LayerKind::kKda) return layer;
  if (gate == "bounded") {
    layer.gate_form = KdaGate::kBounded;
    layer.lower_bound = -5.0f;
    return layer;
  }
  layer.lower_bound = 0.0f;
  layer.gate_form = gate == "softplus" ? KdaGate::kSoftplus : KdaGate::kActivated;
  if (gate == "softplus" || gate == "activated") return layer;
  return bad_option("--gate", "model, bounded, softplus or activated", gate);
}

void add_threads(const BenchSpec& spec, BenchSettings& settings) {
  for (const int32_t threads : settings.threads) {
    settings.cases.push_back(spec);
    settings.cases.back().threads = threads;
  }
}

Status add_layer_cases(const BenchOptions& options, const ModelLayer& layer,
                       const std::vector<RowLayout>& layouts, BenchSpec spec,
                       BenchSettings& settings) {
  spec.model = layer.model;
  spec.model_layers = layer.model_layers;
  for (const int64_t heads : options.heads) {
    const Result<LayerSpec> resized = with_heads(layer.layer, heads);
    if (!resized.ok()) return resized.status();
    const Result<LayerSpec> gated = with_gate(*resized, options.gate);
    if (!gated.ok()) return gated.status();
    spec.layer = *gated;
    spec.gate_given = options.gate != "model" && layer.layer.kind == LayerKind::kKda;
    for (const RowLayout& layout : layouts) {
      spec.layout = layout;
      add_threads(spec, settings);
    }
  }
  return {};
}

Status add_cases(const BenchOptions& options, const std::vector<BenchOp>& ops, BenchSpec spec,
                 BenchSettings& settings) {
  const Result<std::vector<ModelLayer>> layers = choose_layers(options.models);
  if (!layers.ok()) return layers.status();
  for (const BenchOp& op : ops) {
    const Result<std::vector<RowLayout>> layouts = layouts_of(op, options);
    if (!layouts.ok()) return layouts.status();
    spec.op = op;
    for (const ModelLayer& layer : *layers) {
      if (layer.layer.kind != op.layer) continue;
      LINESTATE_RETURN_IF_ERROR(add_layer_cases(options, layer, *layouts, spec, settings));
    }
  }
  return {};
}

// Rows of the suite that --op and --heads leave.
Status add_suite(const BenchOptions& options, const std::vector<BenchOp>& ops,
                 const BenchSpec& base, BenchSettings& settings) {
  const Result<std::vector<SuiteRow>> rows = bench_suite(options.suite);
  if (!rows.ok()) return rows.status();
  for (const SuiteRow& row : *rows) {
    const auto chosen = [&](const BenchOp& op) { return op.name == row.op; };
    if (std::none_of(ops.begin(), ops.end(), chosen)) continue;
    const std::vector<int64_t>& heads = options.heads;
    if (options.heads_given &&
        std::find(heads.begin(), heads.end(), row.value_heads) == heads.end()) {
      continue;
    }
    const Result<BenchSpec> spec = spec_of_row(row, base);
    if (!spec.ok()) return spec.status();
    add_threads(*spec, settings);
  }
  return {};
}

Result<BenchSpec> base_spec(const BenchOptions& options) {
  BenchSpec spec;
  const Result<DType> io = parse_dtype("--io-dtype", options.io_dtype);
  if (!io.ok()) return io.status();
  const Result<DType> state = parse_dtype("--state-dtype", options.state_dtype);
  if (!state.ok()) return state.status();
  const Result<DType> ring = parse_dtype("--ring-dtype", options.ring_dtype);
  if (!ring.ok()) return ring.status();
  if (*ring == DType::kBF16) return bad_option("--ring-dtype", "f32 or f16", "bf16");
  const Result<Profile> profile = parse_profile(options.profile);
  if (!profile.ok() || *profile == Profile::kCorrelated) {
    return bad_option("--profile", "plain, slow, strong or mixed", options.profile);
  }
  spec.io_dtype = *io;
  spec.state_dtype = *state;
  spec.ring_dtype = *ring;
  spec.ring_length = options.ring;
  spec.profile = *profile;
  spec.kernel = options.kernel;
  return spec;
}

// A GPU is quick and its clock is good: many short samples, and no comparison with `ref`, which
// runs on the CPU.
void set_budgets(const BenchOptions& options, BenchSettings& settings) {
  settings.ref_budget = {0.0, 0.05, 1e-3, 3};
  if (settings.device.device.type == DeviceType::kCuda) {
    settings.budget = {0.0, 0.15, 1e-3, 5, 50};
    settings.with_ref = false;
    if (options.quick) settings.budget = {0.0, 0.03, 5e-4, 3, 30};
    return;
  }
  if (options.quick) {
    settings.budget = {0.02, 0.1, 1e-3, 3};
    settings.roof_seconds = 0.3;
  }
}

}  // namespace

Result<LayerSpec> with_heads(LayerSpec layer, int64_t value_heads) {
  if (value_heads == 0) return layer;
  const int64_t ratio = layer.heads.num_value_heads / layer.heads.num_heads;
  if (value_heads % ratio != 0) {
    return bad_option("--heads", "a multiple of " + std::to_string(ratio) + " for this model",
                      std::to_string(value_heads));
  }
  layer.heads.num_value_heads = value_heads;
  layer.heads.num_heads = value_heads / ratio;
  LINESTATE_RETURN_IF_ERROR(validate(layer));
  return layer;
}

Result<BenchSettings> resolve_bench(const BenchOptions& options) {
  LINESTATE_RETURN_IF_ERROR(check_options(options));
  const Result<BenchSpec> spec = base_spec(options);
  if (!spec.ok()) return spec.status();
  const Result<std::vector<BenchOp>> ops = choose_ops(options.ops);
  if (!ops.ok()) return ops.status();
  const Result<DeviceChoice> device = choose_device(options.device, options.kernel);
  if (!device.ok()) return device.status();
  BenchSettings settings;
  settings.options = options;
  settings.device = *device;
  settings.clock = options.clock == "cpu" ? BenchClock::kCpu : BenchClock::kWall;
  settings.threads.assign(options.threads.begin(), options.threads.end());
  if (device->device.type == DeviceType::kCuda) settings.threads = {1};
  settings.with_ref = options.ref == "on" && options.kernel != "ref";
  set_budgets(options, settings);
  LINESTATE_RETURN_IF_ERROR(options.suite.empty() ? add_cases(options, *ops, *spec, settings)
                                                  : add_suite(options, *ops, *spec, settings));
  if (settings.cases.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "--op, --model: no layer of these models has any of these operators");
  }
  return settings;
}

}  // namespace linestate::cli
