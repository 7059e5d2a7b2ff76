// Timing by graphs: what a device needs for a call between other calls, as in a stack of layers.
#include <algorithm>
#include <cmath>

#include "cli/bench/bench_measure.h"
#include "linestate/device_staging.h"
#include "testing/gpu_probe.h"

namespace linestate::cli {
namespace {

constexpr int64_t kMostGraphCalls = 4096;
constexpr double kMostGraphSeconds = 0.05;  // slower problems take a part of a turn
constexpr int64_t kHostCalls = 64;          // queued at once: below what a stream holds unfinished
constexpr int64_t kHostRounds = 5;

struct Timed {
  BenchDevice& device;
  const BenchProblem& problem;
  void* stream;
  int64_t call = 0;

  Status queue(int64_t calls) {
    for (int64_t i = 0; i < calls; ++i) LINESTATE_RETURN_IF_ERROR(problem.run(call++));
    return {};
  }
};

Result<DeviceGraph> capture(Timed& timed, int64_t calls) {
  const Device device = timed.device.device();
  LINESTATE_RETURN_IF_ERROR(DeviceGraph::begin_capture(device, timed.stream));
  const Status queued = timed.queue(calls);
  Result<DeviceGraph> graph = DeviceGraph::end_capture(device, timed.stream);
  LINESTATE_RETURN_IF_ERROR(queued);
  return graph;
}

// Whole turns, at least `least` seconds of them; of slow problems what fits kMostGraphSeconds.
int64_t graph_calls(int64_t turn, double call_seconds, double least) {
  const auto wanted = static_cast<int64_t>(std::ceil(least / call_seconds));
  const int64_t turns = std::max<int64_t>(1, (wanted + turn - 1) / turn);
  const auto most = static_cast<int64_t>(kMostGraphSeconds / call_seconds);
  return std::clamp<int64_t>(std::min(turns * turn, most), std::min<int64_t>(turn, 2),
                             kMostGraphCalls);
}

// Replays back to back, so that the next one is queued before the one in front has ended.
Result<std::vector<double>> replay(Timed& timed, const DeviceGraph& graph, int64_t calls,
                                   int64_t samples) {
  Result<testing::StreamMarks> marks =
      testing::StreamMarks::create(timed.device.device(), samples + 1);
  if (!marks.ok()) return marks.status();
  LINESTATE_RETURN_IF_ERROR(graph.launch(timed.stream));
  LINESTATE_RETURN_IF_ERROR(marks->set(0, timed.stream));
  for (int64_t i = 1; i <= samples; ++i) {
    LINESTATE_RETURN_IF_ERROR(graph.launch(timed.stream));
    LINESTATE_RETURN_IF_ERROR(marks->set(i, timed.stream));
  }
  LINESTATE_RETURN_IF_ERROR(synchronize(timed.device.device(), timed.stream));
  std::vector<double> seconds;
  for (int64_t i = 0; i < samples; ++i) {
    const Result<double> passed = marks->seconds(i, i + 1);
    if (!passed.ok()) return passed.status();
    seconds.push_back(*passed / static_cast<double>(calls));
  }
  return seconds;
}

// Queues calls into an idle stream and looks at the host's clock only.
Result<double> host_seconds(Timed& timed, double call_seconds) {
  const auto fit = static_cast<int64_t>(kMostGraphSeconds / call_seconds);
  const int64_t calls = std::clamp<int64_t>(fit, 1, kHostCalls);
  std::vector<double> rounds;
  for (int64_t round = 0; round < kHostRounds; ++round) {
    LINESTATE_RETURN_IF_ERROR(synchronize(timed.device.device(), timed.stream));
    const double begin = clock_seconds(BenchClock::kWall);
    LINESTATE_RETURN_IF_ERROR(timed.queue(calls));
    rounds.push_back((clock_seconds(BenchClock::kWall) - begin) / static_cast<double>(calls));
    if (call_seconds > kMostGraphSeconds) break;
  }
  LINESTATE_RETURN_IF_ERROR(synchronize(timed.device.device(), timed.stream));
  return percentile(rounds, 0.5);
}

}  // namespace

Result<BenchTiming> measure_graph(BenchDevice& device, const BenchProblem& problem,
                                  const BenchBudget& budget) {
  LINESTATE_RETURN_IF_ERROR(check_not_interrupted());
  Timed timed{device, problem, device.context(1).stream};
  const Result<double> first = device.time([&] { return timed.queue(1); });
  if (!first.ok()) return first.status();
  const int64_t warm = *first > budget.seconds ? 1 : 4;
  const Result<double> again = device.time([&] { return timed.queue(warm); });
  if (!again.ok()) return again.status();
  const double estimate = *again / static_cast<double>(warm);
  const int64_t calls = graph_calls(problem.turn, estimate, budget.sample_seconds);
  timed.call = 0;
  const Result<DeviceGraph> graph = capture(timed, calls);
  if (!graph.ok()) return graph.status();
  // One replay says how many fit the budget: the estimate has the host's time in it.
  const Result<std::vector<double>> one = replay(timed, *graph, calls, 1);
  if (!one.ok()) return one.status();
  const double graph_seconds = one->front() * static_cast<double>(calls);
  const auto fit = static_cast<int64_t>(budget.seconds / graph_seconds);
  const int64_t samples = std::clamp(fit, budget.least_samples, budget.most_samples);
  const Result<std::vector<double>> seconds = replay(timed, *graph, calls, samples);
  if (!seconds.ok()) return seconds.status();
  BenchTiming timing = summarize(*seconds, calls);
  const Result<double> host = host_seconds(timed, timing.median);
  if (!host.ok()) return host.status();
  timing.host = *host;
  timing.launches = (graph->num_nodes() + calls - 1) / calls;
  timing.first_call = *first;
  return timing;
}

}  // namespace linestate::cli
