// Lists of cases with a name: shapes that others were measured on, beside what they reached.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/bench_case.h"
#include "linestate/status.h"

namespace linestate::cli {

struct SuiteRow {
  const char* op;
  int64_t value_heads;
  const char* layout;  // "64x8": 64 rows of 8 drafts
  KdaGate gate = KdaGate::kSoftplus;
  DType io_dtype = DType::kBF16;
  const char* peer = "";   // the fastest one that was right, on one NVIDIA H200
  double peer_us = 0.0;    // of the device; 0 = nobody was measured
  double target_us = 0.0;  // 0 = none
  DType state_dtype = DType::kF32;
  int64_t ring_length = 16;
  DType ring_dtype = DType::kF32;
};

/// peers: what others were measured on. rest: everything else that has a kernel on a GPU. all:
/// both. Errors: kInvalidArgument listing these names.
Result<std::vector<SuiteRow>> bench_suite(const std::string& name);

/// The case of a row, on the layer of a preset that has the row's gate; `base` has threads, kernel
/// and profile.
Result<BenchSpec> spec_of_row(const SuiteRow& row, const BenchSpec& base);

}  // namespace linestate::cli
