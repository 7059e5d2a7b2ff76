#include "testing/golden.h"

#include <stdexcept>

#include "testing/golden_case.h"

namespace linestate::testing {
namespace {

struct GoldenRunner {
  std::string_view op;
  void (*run)(GoldenCase&);
};

constexpr GoldenRunner kRunners[] = {
    {"causal_conv1d_fn", run_golden_conv_prefill},
    {"causal_conv1d_update", run_golden_conv_update},
    {"kda_prefill", run_golden_kda_prefill},
    {"kda_decode", run_golden_kda_decode},
    {"lightning_prefill", run_golden_seg_la_prefill},
    {"lightning_decode", run_golden_seg_la_decode},
    {"lightning_minimax_prefill", run_golden_minimax_prefill},
    {"lightning_minimax_decode", run_golden_minimax_decode},
    {"lightning_slopes", run_golden_slopes},
    {"causal_conv1d_update_spec", run_golden_conv_spec},
    {"kda_verify", run_golden_kda_verify},
    {"kda_replayssm", run_golden_kda_replayssm},
    {"lightning_mtp", run_golden_lightning_mtp},
    {"spec_commit", run_golden_spec_commit},
    {"track_decode", run_golden_track_decode},
};

Status with_path(std::string_view path, StatusCode code, const std::string& message) {
  return Status(code, std::string(path) + ": " + message);
}

}  // namespace

bool GoldenReport::passed() const {
  bool judged = false;
  for (const GoldenLine& line : lines) {
    if (line.verdict == GoldenVerdict::kFail) return false;
    judged |= line.verdict == GoldenVerdict::kPass;
  }
  return judged;
}

std::vector<std::string> golden_ops() {
  std::vector<std::string> out;
  for (const GoldenRunner& runner : kRunners) out.emplace_back(runner.op);
  return out;
}

Result<GoldenReport> run_golden(const Safetensors& file, std::string_view path,
                                const GoldenOptions& options) {
  Result<std::string> op = file.meta("op");
  if (!op.ok()) return with_path(path, StatusCode::kDataLoss, op.status().message());
  const GoldenRunner* runner = nullptr;
  for (const GoldenRunner& row : kRunners) {
    if (row.op == *op) runner = &row;
  }
  if (*op == "metadata") {
    return Status(StatusCode::kFailedPrecondition,
                  "metadata, host integers that golden_metadata_test reads");
  }
  if (runner == nullptr) {
    return Status(StatusCode::kUnsupported, *op + ", this build has no such operator");
  }
  GoldenReport report;
  report.op = *op;
  try {
    GoldenCase golden(file, options, report);
    runner->run(golden);
  } catch (const GoldenError& error) {
    return with_path(path, error.status.code(), error.status.message());
  } catch (const std::invalid_argument& error) {
    return with_path(path, StatusCode::kDataLoss, error.what());  // shapes that do not fit
  }
  return report;
}

}  // namespace linestate::testing
