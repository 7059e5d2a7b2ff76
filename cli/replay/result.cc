#include "cli/replay/result.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace linestate::cli {

double percentile(const std::vector<double>& values, const std::vector<int64_t>& weights,
                  double fraction) {
  if (values.empty()) return 0.0;
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  auto weight = [&](size_t i) { return weights.empty() ? int64_t{1} : weights[i]; };
  int64_t total = 0;
  for (const size_t i : order) total += weight(i);
  const double rank = std::max(1.0, std::ceil(fraction * static_cast<double>(total)));
  int64_t seen = 0;
  for (const size_t i : order) {
    seen += weight(i);
    if (static_cast<double>(seen) >= rank) return values[i];
  }
  return values[order.back()];
}

ReplayNumbers summarize(const ReplayResult& result) {
  ReplayNumbers numbers;
  const auto tokens =
      static_cast<double>(result.input_tokens + result.output_tokens - result.cache.hit_tokens);
  if (result.backend_s > 0.0) numbers.tokens_per_s = tokens / result.backend_s;
  std::vector<double> step_s;
  std::vector<int64_t> decodes;
  double running = 0.0;
  int64_t most_running = 0;
  for (const StepSample& step : result.steps) {
    running += static_cast<double>(step.running);
    most_running = std::max(most_running, step.running);
    if (step.decode_tokens == 0) continue;
    step_s.push_back(step.backend_s * static_cast<double>(step.decode_rows) /
                     static_cast<double>(step.decode_tokens));
    decodes.push_back(step.decode_tokens);
  }
  numbers.tpot_p50_s = percentile(step_s, decodes, 0.50);
  numbers.tpot_p99_s = percentile(step_s, decodes, 0.99);
  numbers.queue_p50 = percentile(result.queue, {}, 0.50);
  numbers.queue_p99 = percentile(result.queue, {}, 0.99);
  if (!result.steps.empty() && result.slots > 0) {
    const auto slots = static_cast<double>(result.slots);
    numbers.occupancy_mean = running / static_cast<double>(result.steps.size()) / slots;
    numbers.occupancy_max = static_cast<double>(most_running) / slots;
  }
  return numbers;
}

}  // namespace linestate::cli
