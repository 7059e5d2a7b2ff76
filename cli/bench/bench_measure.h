// Repeated timing: warm-up, then samples until enough time has passed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench/bench_device.h"
#include "cli/bench/bench_problem.h"

namespace linestate::cli {

struct BenchBudget {
  double warm_up_seconds = 0.1;
  double seconds = 0.6;          // of samples; goes over when one call takes longer
  double sample_seconds = 1e-3;  // short calls are timed several at once
  int64_t least_samples = 5;
  int64_t most_samples = int64_t{1} << 40;
};

/// Seconds of one call.
struct BenchTiming {
  double median = 0.0;
  double p10 = 0.0;
  double p90 = 0.0;
  double least = 0.0;
  int64_t samples = 0;
  int64_t calls_per_sample = 1;
  double host = 0.0;        // seconds of the host to queue one call, no graph; 0 = not measured
  int64_t launches = 0;     // of one call on a device; 0 = not counted
  double first_call = 0.0;  // seconds of the first call, all of it done
};

/// Percentile by linear interpolation between the two nearest ranks. REQUIRES: values not empty.
double percentile(std::vector<double> values, double fraction);
BenchTiming summarize(const std::vector<double>& seconds, int64_t calls_per_sample);

/// Errors: the problem's own, kCancelled when interrupted.
Result<BenchTiming> measure(BenchDevice& device, const BenchProblem& problem,
                            const BenchBudget& budget);

/// The same on a device with graphs: a graph of whole turns of the problem, long enough that the
/// gap between two replays does not count, replayed back to back and timed by the device; then the
/// host's time to queue calls without a graph.
Result<BenchTiming> measure_graph(BenchDevice& device, const BenchProblem& problem,
                                  const BenchBudget& budget);

/// kCancelled when the user interrupted.
Status check_not_interrupted();

}  // namespace linestate::cli
