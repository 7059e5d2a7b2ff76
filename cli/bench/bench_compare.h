// Two result files row by row.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "linestate/status.h"

namespace linestate::cli {

struct ComparedTiming {
  double median_us = 0.0;
  double p10_us = 0.0;
  double p90_us = 0.0;
};

/// One line of a result file.
struct ComparedRow {
  std::string key;  // everything that says what was measured: "kda_decode kimi-linear 4/4 ..."
  ComparedTiming timing;
};

struct BenchFile {
  std::vector<ComparedRow> rows;
  std::string machine;  // name and load
  std::string commit;
  std::string clock;
  double copy_bytes_per_second = 0.0;  // of one thread
  double flops_per_second = 0.0;
};

/// JSON lines as `linestate bench --json` writes them. `path` is for messages only.
/// Errors: kDataLoss naming the line (not JSON, no run record, a member missing or of another
/// type, the same row twice).
Result<BenchFile> parse_bench_file(std::string_view text, const std::string& path);
/// Errors: kIo as well.
Result<BenchFile> read_bench_file(const std::string& path);

enum class Change : uint8_t { kNoise, kFaster, kSlower };
/// Beyond noise when the spreads [p10, p90] do not touch.
Change judge(const ComparedTiming& before, const ComparedTiming& after);

struct BenchComparison {
  std::string text;            // the table
  int64_t matched = 0;         // rows that both files have
  double worst_percent = 0.0;  // largest slow-down beyond noise
};
BenchComparison compare_bench(const BenchFile& before, const BenchFile& after);

/// Prints the table. Returns the exit code: 0; 1 when a row is slower by more than `fail_above`
/// percent (when not negative) and beyond noise; 2 for files that cannot be compared.
int run_bench_compare(const std::string& before, const std::string& after, double fail_above);

}  // namespace linestate::cli
