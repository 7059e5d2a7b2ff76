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

std::string roofs_text(const DeviceRoofs& roofs) {
  char text[128];
  std::snprintf(text, sizeof(text), "copy %.1f GB/s, multiply-add %.1f GFLOP/s with %d thread%s",
                roofs.copy_bytes_per_second * 1e-9, roofs.flops_per_second * 1e-9, roofs.threads,
                roofs.threads == 1 ? "" : "s");
  return text;
}

}  // namespace linestate::cli
