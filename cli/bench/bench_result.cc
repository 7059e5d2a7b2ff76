#include "cli/bench/bench_result.h"

#include <cstdio>

namespace linestate::cli {
namespace {

using testing::Json;

constexpr double kMicro = 1e6;

Json ratio_or_null(double ratio) { return ratio > 0.0 ? Json(ratio) : Json(); }

std::string time_text(double seconds) {
  char text[32];
  if (seconds < 1e-3) {
    std::snprintf(text, sizeof(text), "%.1f us", seconds * 1e6);
  } else if (seconds < 1.0) {
    std::snprintf(text, sizeof(text), "%.2f ms", seconds * 1e3);
  } else {
    std::snprintf(text, sizeof(text), "%.2f s", seconds);
  }
  return text;
}

std::string percent_text(double ratio) {
  if (ratio <= 0.0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.0f%%", 100.0 * ratio);
  return text;
}

std::string times_text(double ratio) {
  if (ratio <= 0.0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.1fx", ratio);
  return text;
}

}  // namespace

double BenchResult::floor_seconds() const {
  const double in_place = roofs.read_write_bytes_per_second;
  const bool rewrites = spec.op.phase == BenchPhase::kStep && in_place > 0.0;
  return work.bytes / (rewrites ? in_place : roofs.copy_bytes_per_second);
}

namespace {

void add_gpu_members(const BenchResult& result, Json& row) {
  row.set("host_us", result.timing.host * kMicro);
  row.set("launches", result.timing.launches);
  row.set("first_call_us", result.timing.first_call * kMicro);
  row.set("touched_bytes", result.work.touched);
  row.set("floor_us", result.floor_seconds() * kMicro);
  const BenchPeer& peer = result.spec.peer;
  row.set("peer", peer.us > 0.0 ? Json(peer.name) : Json());
  row.set("peer_us", ratio_or_null(peer.us));
  row.set("target_us", ratio_or_null(peer.target_us));
}

}  // namespace

Json row_json(const BenchResult& result) {
  const BenchSpec& spec = result.spec;
  const HeadShape& heads = spec.layer.heads;
  Json row = Json::object();
  row.set("record", "row");
  row.set("op", spec.op.name);
  row.set("model", spec.model);
  row.set("heads", heads.num_heads);
  row.set("value_heads", heads.num_value_heads);
  row.set("k_dim", heads.k_dim);
  row.set("v_dim", heads.v_dim);
  row.set("layout", spec.layout.name);
  row.set("rows", spec.layout.rows());
  row.set("tokens", spec.layout.total());
  row.set("io_dtype", dtype_name(spec.io_dtype));
  row.set("state_dtype", dtype_name(spec.state_dtype));
  row.set("gate", gate_name(spec.layer));
  row.set("profile", profile_name(spec.profile));
  row.set("choices", choices_of(spec));
  if (is_ring_op(spec.op)) {
    row.set("ring_length", spec.ring_length);
    row.set("ring_dtype", dtype_name(spec.ring_dtype));
  }
  row.set("threads", static_cast<int64_t>(spec.threads));
  row.set("requested", spec.kernel);
  row.set("kernel", result.kernel);
  row.set("median_us", result.timing.median * kMicro);
  row.set("p10_us", result.timing.p10 * kMicro);
  row.set("p90_us", result.timing.p90 * kMicro);
  row.set("least_us", result.timing.least * kMicro);
  row.set("samples", result.timing.samples);
  row.set("calls_per_sample", result.timing.calls_per_sample);
  row.set("unit", result.work.unit);
  row.set("units", result.work.units);
  row.set("us_per_unit", result.unit_seconds() * kMicro);
  row.set("bytes", result.work.bytes);
  row.set("operations", result.work.operations);
  row.set("bytes_per_second", result.bytes_per_second());
  row.set("copy_ratio", result.copy_ratio());
  row.set("peak_ratio", ratio_or_null(result.peak_ratio()));
  row.set("ref_us_per_unit", ratio_or_null(result.ref_unit_seconds * kMicro));
  row.set("ref_ratio", ratio_or_null(result.ref_ratio()));
  if (result.roofs.read_write_bytes_per_second > 0.0) add_gpu_members(result, row);
  return row;
}

std::string table_head() {
  char text[256];
  std::snprintf(text, sizeof(text), "%-23s %-13s %5s %-8s %3s %-7s %10s %17s %12s %6s %6s %8s\n",
                "op", "model", "heads", "rows", "thr", "kernel", "median", "p10 .. p90",
                "us/head-unit", "copy", "peak", "ref");
  return text;
}

std::string table_row(const BenchResult& result) {
  const BenchSpec& spec = result.spec;
  const double median = result.timing.median;
  char spread[48];
  std::snprintf(spread, sizeof(spread), "%+.0f%% .. %+.0f%%",
                100.0 * (result.timing.p10 / median - 1.0),
                100.0 * (result.timing.p90 / median - 1.0));
  char text[256];
  std::snprintf(text, sizeof(text),
                "%-23s %-13s %5lld %-8s %3d %-7s %10s %17s %12.3f %6s %6s %8s\n",
                std::string(spec.op.name).c_str(), spec.model.c_str(),
                static_cast<long long>(spec.layer.heads.num_value_heads), spec.layout.name.c_str(),
                spec.threads, result.kernel.c_str(), time_text(median).c_str(), spread,
                result.unit_seconds() * kMicro, percent_text(result.copy_ratio()).c_str(),
                percent_text(result.peak_ratio()).c_str(), times_text(result.ref_ratio()).c_str());
  return text;
}

std::string gpu_table_head() {
  char text[256];
  std::snprintf(text, sizeof(text),
                "%-23s %5s %-8s %-9s %-9s %-10s %10s %15s %8s %6s %3s %6s %9s %9s %s\n", "op",
                "heads", "rows", "gate", "io/state", "kernel", "median us", "p10 .. p90",
                "floor us", "host", "n", "first", "target", "peer us", "peer");
  return text;
}

namespace {

// What a line says before its times.
std::string gpu_case_text(const BenchSpec& spec, const std::string& kernel) {
  std::string dtypes(dtype_name(spec.io_dtype));
  dtypes.append("/").append(dtype_name(spec.state_dtype));
  if (is_ring_op(spec.op)) {
    dtypes.append("/").append(std::to_string(spec.ring_length)).append(dtype_name(spec.ring_dtype));
  }
  char text[192];
  std::snprintf(text, sizeof(text), "%-23s %5lld %-8s %-9s %-9s %-10s",
                std::string(spec.op.name).c_str(),
                static_cast<long long>(spec.layer.heads.num_value_heads), spec.layout.name.c_str(),
                std::string(gate_name(spec.layer)).c_str(), dtypes.c_str(), kernel.c_str());
  return text;
}

// "-" for nothing.
std::string micro_text(double us) {
  if (us <= 0.0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), us < 100.0 ? "%.2f" : "%.0f", us);
  return text;
}

}  // namespace

std::string gpu_table_row(const BenchResult& result) {
  const BenchTiming& timing = result.timing;
  const BenchPeer& peer = result.spec.peer;
  char spread[48];
  std::snprintf(spread, sizeof(spread), "%+.1f%% .. %+.1f%%",
                100.0 * (timing.p10 / timing.median - 1.0),
                100.0 * (timing.p90 / timing.median - 1.0));
  std::string rival = micro_text(peer.us);
  if (peer.us > 0.0) {
    rival.append("  ").append(times_text(peer.us / (timing.median * kMicro)));
    rival.append(" ").append(peer.name);
  }
  char text[256];
  std::snprintf(text, sizeof(text), " %10s %15s %8s %6s %3lld %6s %9s %9s\n",
                micro_text(timing.median * kMicro).c_str(), spread,
                micro_text(result.floor_seconds() * kMicro).c_str(),
                micro_text(timing.host * kMicro).c_str(), static_cast<long long>(timing.launches),
                micro_text(timing.first_call * kMicro).c_str(), micro_text(peer.target_us).c_str(),
                rival.c_str());
  return gpu_case_text(result.spec, result.kernel) + text;
}

std::string gpu_table_refusal(const BenchSpec& spec, const Status& status) {
  return gpu_case_text(spec, "-") + " refused: " + status.message() + "\n";
}

std::string roofs_text(const DeviceRoofs& roofs) {
  char text[192];
  if (roofs.read_write_bytes_per_second > 0.0) {
    std::snprintf(text, sizeof(text),
                  "copy %.0f GB/s, in place %.0f GB/s, multiply-add %.1f TFLOP/s, SM %d MHz, "
                  "memory %d MHz, launch %.2f us of the host",
                  roofs.copy_bytes_per_second * 1e-9, roofs.read_write_bytes_per_second * 1e-9,
                  roofs.flops_per_second * 1e-12, roofs.sm_mhz, roofs.memory_mhz,
                  roofs.launch_seconds * kMicro);
    return text;
  }
  std::snprintf(text, sizeof(text), "copy %.1f GB/s, multiply-add %.1f GFLOP/s with %d thread%s",
                roofs.copy_bytes_per_second * 1e-9, roofs.flops_per_second * 1e-9, roofs.threads,
                roofs.threads == 1 ? "" : "s");
  return text;
}

}  // namespace linestate::cli
