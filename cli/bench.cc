#include "cli/bench.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <string>

#include "cli/bench/bench_compare.h"
#include "cli/bench/bench_machine.h"
#include "cli/bench/bench_result.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/report/plot_file.h"
#include "testing/json.h"

namespace linestate::cli {
namespace {

using testing::Json;

// `ref` is the oracle and slow: it runs on a cut of the same rows and is compared by the unit.
constexpr size_t kRefRows = 4;
constexpr int32_t kRefTokens = 64;

using Roofs = std::map<int32_t, DeviceRoofs>;

// One thread always, so that two files have a roof in common.
Result<Roofs> measure_roofs(BenchDevice& device, const BenchSettings& settings) {
  Roofs roofs;
  std::vector<int32_t> threads{1};
  for (const int32_t asked : settings.threads) threads.push_back(device.resolve_threads(asked));
  for (const int32_t count : threads) {
    if (roofs.count(count) != 0) continue;
    const Result<DeviceRoofs> measured = device.roofs(count, settings.roof_seconds);
    if (!measured.ok()) return measured.status();
    roofs.emplace(count, *measured);
    std::printf("%s\n", roofs_text(*measured).c_str());
  }
  return roofs;
}

Json run_json(const BenchDevice& device, const BenchSettings& settings, const Roofs& roofs) {
  Json run = Json::object();
  run.set("record", "run");
  run.set("date", utc_now());
  run.set("machine", machine_json(device));
  run.set("build", build_json());
  Json list = Json::array();
  for (const auto& [threads, measured] : roofs) {
    Json roof = Json::object();
    roof.set("threads", static_cast<int64_t>(threads));
    roof.set("copy_bytes_per_second", measured.copy_bytes_per_second);
    roof.set("flops_per_second", measured.flops_per_second);
    if (measured.read_write_bytes_per_second > 0.0) {
      roof.set("read_write_bytes_per_second", measured.read_write_bytes_per_second);
      roof.set("sm_mhz", static_cast<int64_t>(measured.sm_mhz));
      roof.set("memory_mhz", static_cast<int64_t>(measured.memory_mhz));
      roof.set("launch_us", 1e6 * measured.launch_seconds);
    }
    list.push(std::move(roof));
  }
  run.set("roofs", std::move(list));
  run.set("clock", settings.options.clock);
  run.set("quick", settings.options.quick);
  return run;
}

Result<double> measure_ref(BenchDevice& device, const BenchSettings& settings, BenchSpec spec) {
  if (spec.layout.tokens.size() > kRefRows) spec.layout.tokens.resize(kRefRows);
  for (int32_t& tokens : spec.layout.tokens) tokens = std::min(tokens, kRefTokens);
  spec.kernel = "ref";
  const Result<BenchProblem> problem = make_bench_problem(device, spec);
  if (!problem.ok()) return problem.status();
  const Result<BenchTiming> timing = measure(device, *problem, settings.ref_budget);
  if (!timing.ok()) return timing.status();
  return timing->median / work_of(spec).units;
}

Result<BenchResult> measure_case(BenchDevice& device, const BenchSettings& settings,
                                 const BenchSpec& spec, const Roofs& roofs) {
  BenchResult result;
  result.spec = spec;
  result.spec.threads = device.resolve_threads(spec.threads);
  result.roofs = roofs.at(result.spec.threads);
  result.work = work_of(spec);
  {
    const Result<BenchProblem> problem = make_bench_problem(device, spec);
    if (!problem.ok()) return problem.status();
    result.kernel = problem->kernel;
    const Result<BenchTiming> timing = measure(device, *problem, settings.budget);
    if (!timing.ok()) return timing.status();
    result.timing = *timing;
  }  // the case's memory goes before ref takes its own
  if (settings.with_ref) {
    const Result<double> ref = measure_ref(device, settings, spec);
    if (!ref.ok()) return ref.status();
    result.ref_unit_seconds = *ref;
  }
  return result;
}

Status run_bench(const BenchSettings& settings) {
  Result<std::unique_ptr<BenchDevice>> made =
      make_bench_device(settings.device.device, settings.clock);
  if (!made.ok()) return made.status();
  BenchDevice& device = **made;
  const Result<Roofs> roofs = measure_roofs(device, settings);
  if (!roofs.ok()) return roofs.status();
  std::string lines = dump_json(run_json(device, settings, *roofs)) + "\n";
  const bool gpu = device.times_graphs();
  std::printf("\n%s", gpu ? gpu_table_head().c_str() : table_head().c_str());
  for (const BenchSpec& spec : settings.cases) {
    const Result<BenchResult> result = measure_case(device, settings, spec, *roofs);
    if (!result.ok() && gpu && result.status().code() == StatusCode::kUnsupported) {
      std::fputs(gpu_table_refusal(spec, result.status()).c_str(), stdout);
      continue;  // the other rows of a suite are still worth measuring
    }
    if (!result.ok()) return result.status();
    std::fputs(gpu ? gpu_table_row(*result).c_str() : table_row(*result).c_str(), stdout);
    std::fflush(stdout);
    lines += dump_json(row_json(*result)) + "\n";
  }
  if (settings.options.json.empty()) return {};
  return write_whole_file(settings.options.json, lines);
}

}  // namespace

int run_bench_verb(const BenchOptions& options) {
  install_interrupt_handlers();
  if (!options.compare.empty()) {
    if (options.fail_above_given && !(options.fail_above >= 0.0)) {
      return fail({StatusCode::kInvalidArgument, "--fail-above: expected a percentage from 0"});
    }
    return run_bench_compare(options.compare[0], options.compare[1],
                             options.fail_above_given ? options.fail_above : -1.0);
  }
  const Result<BenchSettings> settings = resolve_bench(options);
  if (!settings.ok()) return fail(settings.status());
  const Status status = run_bench(*settings);
  return status.ok() ? kOkExitCode : fail(status);
}

}  // namespace linestate::cli
