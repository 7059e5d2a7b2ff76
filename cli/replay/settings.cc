#include "cli/replay/settings.h"

#include <omp.h>

#include <cmath>
#include <set>
#include <sstream>

#include "cli/report/plot_file.h"
#include "linestate/kernel_info.h"
#include "linestate/ops/draft_tree.h"
#include "linestate/ops/replay_ring.h"

namespace linestate::cli {
namespace {

Status bad_option(std::string_view option, const std::string& expected, const std::string& got) {
  return Status(StatusCode::kInvalidArgument,
                std::string(option) + ": expected " + expected + ", got " + got);
}

std::string number_text(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

Status check_range(std::string_view option, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return bad_option(option, std::to_string(low) + " to " + std::to_string(high),
                    std::to_string(value));
}

Status check_numbers(const ReplayOptions& options) {
  constexpr int64_t kMostTokens = int64_t{1} << 20;
  constexpr int64_t kMostRunning = int64_t{1} << 20;
  constexpr int64_t kMost = int64_t{1} << 40;
  LINESTATE_RETURN_IF_ERROR(check_range("--layers", options.layers, 0, 4096));
  LINESTATE_RETURN_IF_ERROR(check_range("--limit", options.limit, 0, kMost));
  LINESTATE_RETURN_IF_ERROR(check_range("--tp-size", options.tp_size, 1, 4096));
  LINESTATE_RETURN_IF_ERROR(check_range("--tp-rank", options.tp_rank, 0, options.tp_size - 1));
  LINESTATE_RETURN_IF_ERROR(
      check_range("--prefill-budget", options.prefill_budget, 1, kMostTokens));
  LINESTATE_RETURN_IF_ERROR(check_range("--max-running", options.max_running, 1, kMostRunning));
  if (options.pool_bytes_given) {
    LINESTATE_RETURN_IF_ERROR(check_range("--pool-bytes", options.pool_bytes, 1, int64_t{1} << 60));
  }
  LINESTATE_RETURN_IF_ERROR(
      check_range("--draft-length", options.draft_length, 1, kMaxVerifyNodes));
  LINESTATE_RETURN_IF_ERROR(check_range("--replay-ring", options.replay_ring, 1, kMaxReplayLength));
  if (options.cache_bytes_given) {
    LINESTATE_RETURN_IF_ERROR(
        check_range("--cache-bytes", options.cache_bytes, 1, int64_t{1} << 60));
  }
  if (!(options.acceptance >= 0.0 && options.acceptance <= 1.0)) {
    return bad_option("--acceptance", "a chance from 0 to 1", number_text(options.acceptance));
  }
  LINESTATE_RETURN_IF_ERROR(check_range("--threads", options.threads, 0, 1024));
  LINESTATE_RETURN_IF_ERROR(check_range("--seed", options.seed, 0, INT64_MAX));
  if (!(options.verify >= 0.0 && options.verify <= 1.0)) {
    return bad_option("--verify", "a fraction from 0 to 1", number_text(options.verify));
  }
  if (!(options.speed >= 0.0 && std::isfinite(options.speed))) {
    return bad_option("--speed", "a factor above 0, or 0 for as fast as possible",
                      number_text(options.speed));
  }
  return {};
}

// Speculation, prefix cache and replay ring.
Status resolve_features(const ReplayOptions& options, ReplaySettings& settings) {
  const Result<Speculation> speculation = parse_speculation(options.speculation);
  if (!speculation.ok()) return speculation.status();
  settings.speculation.kind = *speculation;
  settings.speculation.draft_length = options.draft_length;
  settings.speculation.acceptance = options.acceptance;
  settings.speculation.seed = static_cast<uint64_t>(options.seed);
  // Drafted tokens bypass the ring; without some decode it would stay empty.
  settings.speculation.plain_in_eight = options.replay_ring > 1 ? 2 : 0;
  if (options.prefix_cache != "on" && options.prefix_cache != "off") {
    return bad_option("--prefix-cache", "on or off", options.prefix_cache);
  }
  settings.prefix_cache = options.prefix_cache == "on";
  if (options.cache_bytes_given && !settings.prefix_cache) {
    return bad_option("--cache-bytes", "--prefix-cache on with it", "off");
  }
  if (options.replay_dtype != "f32" && options.replay_dtype != "f16") {
    return bad_option("--replay-dtype", "f32 or f16", options.replay_dtype);
  }
  settings.replay_dtype = options.replay_dtype == "f32" ? DType::kF32 : DType::kF16;
  return {};
}

}  // namespace

Result<DType> parse_dtype(std::string_view option, std::string_view name) {
  if (name == "f32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  if (name == "f16") return DType::kF16;
  return bad_option(option, "f32, bf16 or f16", std::string(name));
}

Status check_kernel_name(const std::string& name) {
  std::set<std::string> names{std::string(kAutoKernel)};
  for (const KernelInfo& info : list_kernels()) names.insert(info.kernel);
  if (names.count(name) != 0) return {};
  std::string list;
  for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
  return Status(StatusCode::kNotFound, "--kernel: expected one of " + list + ", got " + name);
}

Result<ModelConfig> resolve_model(const std::string& name, int64_t layers) {
  Result<ModelConfig> model = model_preset(name);
  if (!model.ok()) return Status(model.status().code(), "--" + model.status().message());
  const auto have = static_cast<int64_t>(model->linear_layers.size());
  if (layers > have) {
    return bad_option("--layers", "at most " + std::to_string(have) + " for " + name,
                      std::to_string(layers));
  }
  return limit_layers(*model, layers);
}

Result<ReplaySettings> resolve_settings(const ReplayOptions& options) {
  LINESTATE_RETURN_IF_ERROR(check_numbers(options));
  LINESTATE_RETURN_IF_ERROR(check_kernel_name(options.kernel));
  Result<DeviceChoice> device = choose_device(options.device, options.kernel);
  if (!device.ok()) return device.status();
  ReplaySettings settings;
  settings.options = options;
  settings.device = std::move(device).value();
  if (options.graphs != "on" && options.graphs != "off") {
    return bad_option("--graphs", "on or off", options.graphs);
  }
  settings.graphs = options.graphs == "on";
  if (settings.graphs && settings.device.device.type != DeviceType::kCuda) {
    return bad_option("--graphs", "off, for there are none on " + settings.device.text, "on");
  }
  Result<DType> state = parse_dtype("--state-dtype", options.state_dtype);
  if (!state.ok()) return state.status();
  Result<DType> io = parse_dtype("--io-dtype", options.io_dtype);
  if (!io.ok()) return io.status();
  Result<Profile> profile = parse_profile(options.profile);
  if (!profile.ok()) return profile.status();
  Result<ModelConfig> model = resolve_model(options.model, options.layers);
  if (!model.ok()) return model.status();
  LINESTATE_RETURN_IF_ERROR(resolve_features(options, settings));
  settings.state_dtype = *state;
  settings.io_dtype = *io;
  settings.stack.shard = {static_cast<int32_t>(options.tp_rank),
                          static_cast<int32_t>(options.tp_size)};
  settings.stack.profile = *profile;
  settings.stack.seed = static_cast<uint64_t>(options.seed);
  settings.threads =
      options.threads > 0 ? static_cast<int>(options.threads) : omp_get_max_threads();
  settings.model = std::move(model).value();
  const Result<ModelConfig> local = shard_model(settings.model, settings.stack.shard);
  if (!local.ok()) {
    return Status(local.status().code(),
                  "--tp-size " + std::to_string(options.tp_size) + ": " + local.status().message());
  }
  if (!options.plot.empty()) LINESTATE_RETURN_IF_ERROR(check_writable(options.plot));
  Result<std::vector<TraceRequest>> trace = read_trace(options.trace, options.limit);
  if (!trace.ok()) return trace.status();
  settings.trace = std::move(trace).value();
  return settings;
}

}  // namespace linestate::cli
