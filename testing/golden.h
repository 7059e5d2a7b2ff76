// Runs golden files against the operators. A file names its operator; one row of a table maps the
// name to a runner (golden_conv.cc, golden_kda.cc, golden_lightning.cc, golden_spec.cc,
// golden_replay.cc), so a new operator is one runner and one row.
//
// How a file becomes a call: tests/golden/README.md. Tolerances: a tensor passes when its relative
// RMS error against the file's float64 reference is at most max(1.1 x SGLang's own error in that
// file, floor) and never above the operator's ceiling; windows, untouched slots and slopes must
// match bit for bit.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "linestate/kernel_info.h"
#include "linestate/status.h"
#include "linestate/tensor.h"
#include "testing/safetensors.h"

namespace linestate::testing {

struct GoldenOptions {
  std::string kernel = std::string(kAutoKernel);
  int32_t threads = 0;  // 0 = all
  Device device{};      // elsewhere the operators run on copies of the files' tensors
};

enum class GoldenVerdict {
  kPass,
  kFail,
  kInfo,  // measured, not judged
};

struct GoldenLine {
  std::string tensor;            // "o", "state_after", "out_silu_bias window"
  bool exact = false;            // judged by bits: no error, limit 0
  double rel = 0.0;              // relative RMS error against the reference
  double max_abs = 0.0;          // largest absolute error
  std::optional<double> sglang;  // SGLang's own relative error, from the file
  double limit = 0.0;            // the largest rel that passes
  GoldenVerdict verdict = GoldenVerdict::kInfo;
  std::string note;  // the first difference, or what the reference was
};

struct GoldenReport {
  std::string op;
  std::string kernel;  // the row that ran; "host" for host functions
  std::vector<GoldenLine> lines;

  /// Something was judged and nothing failed.
  bool passed() const;
};

/// Operators of golden files that run_golden serves.
std::vector<std::string> golden_ops();

/// `path` is only for messages. Errors: kUnsupported (no such operator here, or every kernel
/// refuses), kNotFound (kernel name, or a tensor the file lacks), kDataLoss (damaged contents),
/// and what the operator returned.
Result<GoldenReport> run_golden(const Safetensors& file, std::string_view path,
                                const GoldenOptions& options);

}  // namespace linestate::testing
