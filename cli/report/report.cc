#include "cli/report/report.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "linestate/version.h"
#include "testing/json.h"

namespace linestate::cli {
namespace {

using testing::Json;

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  std::snprintf(text, sizeof(text), pattern, values...);
  return text;
}

class Table {
 public:
  void section(const std::string& title) { text_ += (text_.empty() ? "" : "\n") + title + "\n"; }
  void row(const std::string& name, const std::string& value) {
    text_ += format("  %-26s", name.c_str()) + value + "\n";
  }
  std::string text() const { return text_; }

 private:
  std::string text_;
};

std::string error_text(const WorstError& worst) {
  if (worst.request < 0) return "none";
  return format("%.3e (limit %.3e; request %lld, layer %lld, head %lld)", worst.error, worst.limit,
                static_cast<long long>(worst.request), static_cast<long long>(worst.layer),
                static_cast<long long>(worst.head));
}

std::string shard_text(const TpShard& shard) {
  if (shard.size == 1) return "";
  return format(", rank %d of %d", shard.rank, shard.size);
}

void add_run(const ReplaySettings& settings, const ReplayResult& result, Table& table) {
  const ReplayOptions& options = settings.options;
  table.section("replay of " + options.trace);
  table.row("model", options.model + ", " + std::to_string(settings.model.linear_layers.size()) +
                         " linear layers" + shard_text(settings.stack.shard));
  table.row("profile, kernel", options.profile + ", " + options.kernel);
  table.row("dtypes", "state " + options.state_dtype + ", io " + options.io_dtype);
  table.row("device", settings.device.text);
  if (settings.graphs) {
    table.row("  graphs", count_text(result.graphs) + " captured, launched " +
                              count_text(result.graph_launches) + " times");
  }
  table.row("requests", count_text(result.requests));
  table.row("input tokens", count_text(result.input_tokens));
  table.row("output tokens", count_text(result.output_tokens));
  table.row("steps", count_text(static_cast<int64_t>(result.steps.size())));
  if (result.layers_without_norm > 0) {
    table.row("layers run without norm",
              count_text(result.layers_without_norm) + " (their norm spans the ranks)");
  }
}

void add_speed(const ReplaySettings& settings, const ReplayResult& result, Table& table) {
  const ReplayNumbers numbers = summarize(result);
  const bool clocked = settings.options.speed > 0.0;
  table.section("speed");
  table.row("wall time", format("%.2f s", result.wall_s));
  table.row("  backend", format("%.2f s", result.backend_s));
  table.row("  generated activations", format("%.2f s", result.generation_s));
  table.row("  verification", format("%.2f s", result.verify_s));
  if (clocked) table.row("  waiting for arrivals", format("%.2f s", result.idle_s));
  table.row("tokens per second",
            format("%.0f (prefill and decode, backend time)", numbers.tokens_per_s));
  table.row("time per output token", format("p50 %.3f ms, p99 %.3f ms (backend time)",
                                            1e3 * numbers.tpot_p50_s, 1e3 * numbers.tpot_p99_s));
  table.row("time in queue",
            clocked
                ? format("p50 %.3f s, p99 %.3f s", numbers.queue_p50, numbers.queue_p99)
                : format("p50 %.0f steps, p99 %.0f steps", numbers.queue_p50, numbers.queue_p99));
}

void add_memory(const ReplaySettings& settings, const ReplayResult& result, Table& table) {
  const ReplayNumbers numbers = summarize(result);
  table.section("state pool");
  table.row("slots", count_text(result.slots));
  table.row("bytes per slot",
            count_text(result.bytes_per_slot) + " (" + bytes_text(result.bytes_per_slot) + ")");
  table.row("pool", bytes_text((result.slots + result.cache_slots) * result.bytes_per_slot));
  if (result.ring_bytes_per_slot > 0) {
    table.row("  replay rings",
              bytes_text((result.slots + result.cache_slots) * result.ring_bytes_per_slot) +
                  format(" (R = %lld, %s)", static_cast<long long>(settings.options.replay_ring),
                         settings.options.replay_dtype.c_str()));
  }
  if (result.cache_slots > 0) {
    table.row("  room for snapshots", count_text(result.cache_slots));
  }
  if (result.verify_record_bytes > 0) {
    table.row("verify records", bytes_text(result.verify_record_bytes));
  }
  table.row("occupancy", format("mean %.1f %%, max %.1f %%", 100.0 * numbers.occupancy_mean,
                                100.0 * numbers.occupancy_max));
}

void add_speculation(const ReplaySettings& settings, const ReplayResult& result, Table& table) {
  if (settings.speculation.kind == Speculation::kOff) return;
  const SpeculationCounts& counts = result.speculation;
  table.section("speculation, " + settings.options.speculation);
  table.row("verify rows", count_text(counts.rows));
  table.row("drafts", count_text(counts.drafted));
  table.row("accepted", count_text(counts.accepted));
  table.row("accepted per row", format("%.2f (and one sure token)", counts.accepted_per_row()));
}

void add_cache(const ReplaySettings& settings, const ReplayResult& result, Table& table) {
  if (!settings.prefix_cache) return;
  const PrefixCacheStats& cache = result.cache;
  table.section("prefix cache");
  table.row("lookups", count_text(cache.lookups));
  table.row("hits", count_text(cache.hits));
  table.row("tokens saved", count_text(cache.hit_tokens));
  table.row("snapshots",
            format("%s taken, %s at the end (%s)", count_text(cache.inserted).c_str(),
                   count_text(cache.entries).c_str(), bytes_text(cache.bytes).c_str()));
  table.row("evictions", count_text(cache.evicted));
}

void add_verification(const ReplaySettings& settings, const ReplayResult& result, Table& table) {
  const VerifySummary& verify = result.verify;
  table.section("verification against ref, run alone");
  if (settings.options.verify == 0.0) {
    table.row("verified requests", "none (--verify 0)");
  } else {
    table.row("verified requests",
              format("%lld of %lld (%s tokens)", static_cast<long long>(verify.requests),
                     static_cast<long long>(result.requests), count_text(verify.tokens).c_str()));
    table.row("worst output error", error_text(verify.output));
    table.row("worst state error", error_text(verify.state));
    if (verify.free_state.request >= 0) {
      table.row("distance to a free run",
                format("state %.3e, output %.3e (not judged)", verify.free_state.error,
                       verify.free_output.error));
    }
    table.row("result", verify.ok() ? "passed" : "FAILED");
  }
  table.row("device status", result.device_status.empty() ? "clean" : result.device_status);
}

Json error_json(const WorstError& worst) {
  Json json = Json::object();
  json.set("error", worst.error);
  json.set("limit", worst.limit);
  json.set("request", worst.request);
  json.set("layer", worst.layer);
  json.set("head", worst.head);
  return json;
}

Json options_json(const ReplaySettings& settings) {
  const ReplayOptions& options = settings.options;
  Json json = Json::object();
  json.set("trace", options.trace);
  json.set("limit", options.limit);
  json.set("device", settings.device.text);
  json.set("graphs", settings.graphs);
  json.set("tp_size", options.tp_size);
  json.set("tp_rank", options.tp_rank);
  json.set("state_dtype", options.state_dtype);
  json.set("io_dtype", options.io_dtype);
  json.set("prefill_budget", options.prefill_budget);
  json.set("max_running", options.max_running);
  json.set("pool_bytes", options.pool_bytes_given ? Json(options.pool_bytes) : Json());
  json.set("verify", options.verify);
  json.set("speculation", options.speculation);
  json.set("draft_length", options.draft_length);
  json.set("acceptance", options.acceptance);
  json.set("prefix_cache", options.prefix_cache);
  json.set("cache_bytes", options.cache_bytes_given ? Json(options.cache_bytes) : Json());
  json.set("replay_ring", options.replay_ring);
  json.set("replay_dtype", options.replay_dtype);
  json.set("profile", options.profile);
  json.set("speed", options.speed);
  json.set("threads", int64_t{settings.threads});
  json.set("kernel", options.kernel);
  json.set("seed", options.seed);
  return json;
}

Json verification_json(const ReplayResult& result) {
  const VerifySummary& verify = result.verify;
  Json json = Json::object();
  json.set("requests", verify.requests);
  json.set("tokens", verify.tokens);
  json.set("passed", verify.ok());
  json.set("output", error_json(verify.output));
  json.set("state", error_json(verify.state));
  if (verify.free_state.request >= 0) {
    json.set("free_state_error", verify.free_state.error);
    json.set("free_output_error", verify.free_output.error);
  }
  return json;
}

Json speculation_json(const SpeculationCounts& counts) {
  Json json = Json::object();
  json.set("rows", counts.rows);
  json.set("drafted", counts.drafted);
  json.set("accepted", counts.accepted);
  json.set("accepted_per_row", counts.accepted_per_row());
  return json;
}

Json cache_json(const PrefixCacheStats& cache) {
  Json json = Json::object();
  json.set("lookups", cache.lookups);
  json.set("hits", cache.hits);
  json.set("tokens_saved", cache.hit_tokens);
  json.set("inserted", cache.inserted);
  json.set("duplicates", cache.duplicates);
  json.set("evictions", cache.evicted);
  json.set("snapshots", cache.entries);
  json.set("bytes", cache.bytes);
  return json;
}

}  // namespace

std::string bytes_text(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < std::size(units)) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? format("%.0f %s", value, units[unit]) : format("%.2f %s", value, units[unit]);
}

std::string count_text(int64_t count) {
  const std::string digits = std::to_string(count);
  const size_t sign = count < 0 ? 1 : 0;
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) text += ' ';
    text += digits[i];
  }
  return text;
}

std::string report_table(const ReplaySettings& settings, const ReplayResult& result) {
  Table table;
  add_run(settings, result, table);
  add_speed(settings, result, table);
  add_memory(settings, result, table);
  add_speculation(settings, result, table);
  add_cache(settings, result, table);
  add_verification(settings, result, table);
  return table.text();
}

std::string report_json(const ReplaySettings& settings, const ReplayResult& result) {
  const ReplayNumbers numbers = summarize(result);
  Json json = Json::object();
  json.set("version", version_string());
  json.set("numerics_version", int64_t{kNumericsVersion});
  json.set("build", build_description());
  json.set("model", settings.options.model);
  json.set("layers", static_cast<int64_t>(settings.model.linear_layers.size()));
  json.set("layers_without_norm", result.layers_without_norm);
  json.set("options", options_json(settings));
  json.set("requests", result.requests);
  json.set("input_tokens", result.input_tokens);
  json.set("output_tokens", result.output_tokens);
  json.set("steps", static_cast<int64_t>(result.steps.size()));
  json.set("wall_s", result.wall_s);
  json.set("backend_s", result.backend_s);
  json.set("generation_s", result.generation_s);
  json.set("verify_s", result.verify_s);
  json.set("idle_s", result.idle_s);
  json.set("tokens_per_s", numbers.tokens_per_s);
  json.set("tpot_p50_s", numbers.tpot_p50_s);
  json.set("tpot_p99_s", numbers.tpot_p99_s);
  json.set("queue_unit", settings.options.speed > 0.0 ? "s" : "steps");
  json.set("queue_p50", numbers.queue_p50);
  json.set("queue_p99", numbers.queue_p99);
  json.set("slots", result.slots);
  json.set("bytes_per_slot", result.bytes_per_slot);
  json.set("pool_bytes", (result.slots + result.cache_slots) * result.bytes_per_slot);
  json.set("ring_bytes", (result.slots + result.cache_slots) * result.ring_bytes_per_slot);
  json.set("cache_slots", result.cache_slots);
  json.set("verify_record_bytes", result.verify_record_bytes);
  json.set("speculation", settings.speculation.kind == Speculation::kOff
                              ? Json()
                              : speculation_json(result.speculation));
  json.set("prefix_cache", settings.prefix_cache ? cache_json(result.cache) : Json());
  json.set("outputs_sum", format("%016llx", static_cast<unsigned long long>(result.outputs_sum)));
  json.set("occupancy_mean", numbers.occupancy_mean);
  json.set("occupancy_max", numbers.occupancy_max);
  json.set("verification", settings.options.verify > 0.0 ? verification_json(result) : Json());
  json.set("device_status", result.device_status);
  json.set("graphs_captured", result.graphs);
  json.set("graph_launches", result.graph_launches);
  return testing::dump_json(json) + "\n";
}

}  // namespace linestate::cli
