#include "cli/bench/bench_settings.h"

#include <algorithm>
#include <cmath>

#include "cli/replay/settings.h"
#include "cli/report/plot_file.h"
#include "linestate/ops/draft_tree.h"

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
  LINESTATE_RETURN_IF_ERROR(check_bench_device(options.device));
  LINESTATE_RETURN_IF_ERROR(check_values("--heads", options.heads, 0, 4096));
  LINESTATE_RETURN_IF_ERROR(check_values("--batch", options.batches, 1, 4096));
  LINESTATE_RETURN_IF_ERROR(check_values("--draft", {options.draft}, 1, kMaxVerifyNodes));
  LINESTATE_RETURN_IF_ERROR(check_values("--threads", options.threads, 0, 1024));
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

Status add_cases(const BenchOptions& options, const std::vector<BenchOp>& ops,
                 const std::vector<ModelLayer>& layers, BenchSpec spec, BenchSettings& settings) {
  for (const BenchOp& op : ops) {
    const Result<std::vector<RowLayout>> layouts = layouts_of(op, options);
    if (!layouts.ok()) return layouts.status();
    spec.op = op;
    for (const ModelLayer& layer : layers) {
      if (layer.layer.kind != op.layer) continue;
      spec.model = layer.model;
      spec.model_layers = layer.model_layers;
      for (const int64_t heads : options.heads) {
        const Result<LayerSpec> resized = with_heads(layer.layer, heads);
        if (!resized.ok()) return resized.status();
        spec.layer = *resized;
        for (const RowLayout& layout : *layouts) {
          spec.layout = layout;
          for (const int32_t threads : settings.threads) {
            spec.threads = threads;
            settings.cases.push_back(spec);
          }
        }
      }
    }
  }
  return {};
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
  const Result<DType> io = parse_dtype("--io-dtype", options.io_dtype);
  if (!io.ok()) return io.status();
  const Result<DType> state = parse_dtype("--state-dtype", options.state_dtype);
  if (!state.ok()) return state.status();
  const Result<std::vector<BenchOp>> ops = choose_ops(options.ops);
  if (!ops.ok()) return ops.status();
  const Result<std::vector<ModelLayer>> layers = choose_layers(options.models);
  if (!layers.ok()) return layers.status();
  BenchSettings settings;
  settings.options = options;
  settings.clock = options.clock == "cpu" ? BenchClock::kCpu : BenchClock::kWall;
  settings.threads.assign(options.threads.begin(), options.threads.end());
  settings.with_ref = options.ref == "on" && options.kernel != "ref";
  settings.ref_budget = {0.0, 0.05, 1e-3, 3};
  if (options.quick) {
    settings.budget = {0.02, 0.1, 1e-3, 3};
    settings.roof_seconds = 0.3;
  }
  BenchSpec spec;
  spec.io_dtype = *io;
  spec.state_dtype = *state;
  spec.kernel = options.kernel;
  LINESTATE_RETURN_IF_ERROR(add_cases(options, *ops, *layers, spec, settings));
  if (settings.cases.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "--op, --model: no layer of these models has any of these operators");
  }
  return settings;
}

}  // namespace linestate::cli
