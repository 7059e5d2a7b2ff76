#include "cli/bench/bench_measure.h"

#include <algorithm>
#include <cmath>

#include "cli/interrupt.h"

namespace linestate::cli {

Status check_not_interrupted() {
  if (!interrupted()) return {};
  return Status(StatusCode::kCancelled, "bench: interrupted; nothing was written");
}

double percentile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  const double rank = fraction * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(rank);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (rank - static_cast<double>(low)) * (values[high] - values[low]);
}

BenchTiming summarize(const std::vector<double>& seconds, int64_t calls_per_sample) {
  BenchTiming timing;
  timing.median = percentile(seconds, 0.5);
  timing.p10 = percentile(seconds, 0.1);
  timing.p90 = percentile(seconds, 0.9);
  timing.least = percentile(seconds, 0.0);
  timing.samples = static_cast<int64_t>(seconds.size());
  timing.calls_per_sample = calls_per_sample;
  return timing;
}

Result<BenchTiming> measure(BenchDevice& device, const BenchProblem& problem,
                            const BenchBudget& budget) {
  if (device.times_graphs()) return measure_graph(device, problem, budget);
  int64_t call = 0;
  double spent = 0.0;
  double quickest = INFINITY;
  while (call < 2 || spent < budget.warm_up_seconds) {
    LINESTATE_RETURN_IF_ERROR(check_not_interrupted());
    const Result<double> seconds = device.time([&] { return problem.run(call); });
    if (!seconds.ok()) return seconds.status();
    spent += *seconds;
    quickest = std::min(quickest, *seconds);
    ++call;
    if (spent > budget.seconds) break;  // one slow call is warm enough
  }
  const auto calls = static_cast<int64_t>(
      std::clamp(std::ceil(budget.sample_seconds / std::max(quickest, 1e-9)), 1.0, 1e6));
  std::vector<double> samples;
  spent = 0.0;
  while (spent < budget.seconds || static_cast<int64_t>(samples.size()) < budget.least_samples) {
    LINESTATE_RETURN_IF_ERROR(check_not_interrupted());
    const Result<double> seconds = device.time([&] {
      for (int64_t i = 0; i < calls; ++i) LINESTATE_RETURN_IF_ERROR(problem.run(call++));
      return Status();
    });
    if (!seconds.ok()) return seconds.status();
    spent += *seconds;
    samples.push_back(*seconds / static_cast<double>(calls));
    if (spent > 4 * budget.seconds && samples.size() >= 3) break;
  }
  return summarize(samples, calls);
}

}  // namespace linestate::cli
