// `linestate bench`: operators and layers against what the machine can do.
#pragma once

#include "cli/bench/bench_settings.h"

namespace linestate::cli {

/// Prints rows as they are measured, errors on stderr; writes the JSON lines at the end. Returns
/// the exit code: 0; 1 when --fail-above was exceeded; 2 for input that cannot be run; 130 when
/// interrupted.
int run_bench_verb(const BenchOptions& options);

}  // namespace linestate::cli
