// A measured case as numbers, as one JSON line and as one line of the table.
#pragma once

#include <string>

#include "cli/bench/bench_case.h"
#include "cli/bench/bench_device.h"
#include "cli/bench/bench_measure.h"
#include "linestate/status.h"
#include "testing/json.h"

namespace linestate::cli {

struct BenchResult {
  BenchSpec spec;  // threads resolved
  std::string kernel;
  BenchTiming timing;
  BenchWork work;
  DeviceRoofs roofs;              // with the threads of the spec
  double ref_unit_seconds = 0.0;  // `ref` on a cut of the same rows; 0 = not measured

  double unit_seconds() const { return timing.median / work.units; }
  double bytes_per_second() const { return work.bytes / timing.median; }
  /// Of the copy bandwidth.
  double copy_ratio() const { return bytes_per_second() / roofs.copy_bytes_per_second; }
  /// Of the multiply-add peak; 0 where work_of counts no operations.
  double peak_ratio() const { return work.operations / timing.median / roofs.flops_per_second; }
  /// The least time that the work's bytes take: in place where most of them are a state.
  double floor_seconds() const;
  /// How many times faster than `ref`; 0 = not measured.
  double ref_ratio() const { return ref_unit_seconds / unit_seconds(); }
};

/// {"record": "row", ...}. Times in microseconds.
testing::Json row_json(const BenchResult& result);
std::string table_head();
std::string table_row(const BenchResult& result);
/// The same of a GPU: times in microseconds, beside the host's and a peer's.
std::string gpu_table_head();
std::string gpu_table_row(const BenchResult& result);
std::string gpu_table_refusal(const BenchSpec& spec, const Status& status);
/// "copy 20.1 GB/s, multiply-add 103.0 GFLOP/s with 1 thread".
std::string roofs_text(const DeviceRoofs& roofs);

}  // namespace linestate::cli
