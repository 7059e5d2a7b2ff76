// The linestate command: one verb per file, each over the public headers.
#include <CLI/CLI.hpp>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "cli/bench.h"
#include "cli/check_verb.h"
#include "cli/exit_codes.h"
#include "cli/explain.h"
#include "cli/info.h"
#include "cli/replay.h"
#include "linestate/version.h"

namespace {

using linestate::cli::BenchOptions;
using linestate::cli::CheckOptions;
using linestate::cli::ExplainOptions;
using linestate::cli::ReplayOptions;

void add_replay_options(CLI::App& verb, ReplayOptions& options) {
  verb.add_option("TRACE", options.trace, "JSON lines in the Mooncake format")->required();
  verb.add_option("--model", options.model, "model preset, see `linestate info`");
  verb.add_option("--layers", options.layers, "first N linear layers, 0 = all");
  verb.add_option("--device", options.device, "cpu, cuda, cuda:I or auto: a usable GPU, else cpu");
  verb.add_option("--graphs", options.graphs,
                  "on: decode and verify steps on a GPU replay captured graphs; or off");
  verb.add_option("--limit", options.limit, "first N requests of the trace, 0 = all");
  verb.add_option("--tp-size", options.tp_size, "tensor parallel ranks");
  verb.add_option("--tp-rank", options.tp_rank, "the rank to run, from 0");
  verb.add_option("--state-dtype", options.state_dtype, "f32, bf16 or f16");
  verb.add_option("--io-dtype", options.io_dtype, "bf16, f16 or f32");
  verb.add_option("--prefill-budget", options.prefill_budget, "prefill tokens a step");
  verb.add_option("--max-running", options.max_running, "requests that hold a slot at a time");
  verb.add_option("--pool-bytes", options.pool_bytes, "memory of the state pool");
  verb.add_option("--speculation", options.speculation, "drafts: off, chain or tree");
  verb.add_option("--draft-length", options.draft_length,
                  "tokens of a verify row, the sure one included");
  verb.add_option("--acceptance", options.acceptance, "chance that the next draft is right");
  verb.add_option("--prefix-cache", options.prefix_cache, "on or off");
  verb.add_option(
      "--cache-bytes", options.cache_bytes,
      "memory of the cache's snapshots, beside the pool; not given = as many as --max-running");
  verb.add_option("--replay-ring", options.replay_ring,
                  "decode writes the state every R tokens; with drafts, a quarter of the steps "
                  "decodes");
  verb.add_option("--replay-dtype", options.replay_dtype, "of the ring's records: f32 or f16");
  verb.add_option("--verify", options.verify, "fraction of requests checked against ref, 0 to 1");
  verb.add_option("--profile", options.profile, "plain, correlated, slow, strong or mixed");
  verb.add_option("--speed", options.speed, "factor on the trace's clock, 0 = as fast as possible");
  verb.add_option("--threads", options.threads, "CPU threads, 0 = all");
  verb.add_option("--kernel", options.kernel, "kernel of every operator, or auto");
  verb.add_option("--seed", options.seed, "of activations, weights and the verified sample");
  verb.add_flag("--json", options.json, "one JSON object instead of the table");
  verb.add_option("--plot", options.plot, "SVG file to write at the end");
}

void add_check_options(CLI::App& verb, CheckOptions& options) {
  verb.add_option("FILE", options.files, "safetensors files as in tests/golden")->required();
  verb.add_option("--device", options.device, "cpu, cuda, cuda:I or auto: a usable GPU, else cpu");
  verb.add_option("--kernel", options.kernel, "kernel name, or auto");
  verb.add_option("--threads", options.threads, "CPU threads, 0 = all");
  verb.add_flag("--json", options.json, "one JSON object instead of the table");
}

void add_explain_options(CLI::App& verb, ExplainOptions& options) {
  verb.add_option("--model", options.model, "model preset, see `linestate info`");
  verb.add_option("--layers", options.layers, "first N linear layers, 0 = all");
  verb.add_option("--op", options.op, "one operator, or all");
  verb.add_option("--rows", options.rows, "rows of each kind");
  verb.add_option("--tokens", options.tokens, "tokens of an extend row");
  verb.add_option("--device", options.device, "cpu, cuda, cuda:I or auto: a usable GPU, else cpu");
  verb.add_option("--dtype", options.dtype, "of the token tensors: bf16, f16 or f32");
  verb.add_option("--state-dtype", options.state_dtype, "f32, bf16 or f16");
  verb.add_option("--kernel", options.kernel, "kernel name, or auto");
}

void add_bench_options(CLI::App& verb, BenchOptions& options) {
  verb.add_option("--op", options.ops, "operators or layers, or all; lists with commas")
      ->delimiter(',');
  verb.add_option("--model", options.models, "presets that the layers' shapes come from")
      ->delimiter(',');
  verb.add_option("--heads", options.heads, "value heads, 0 = the model's")->delimiter(',');
  verb.add_option("--layout", options.layouts, "prompts: ROWSxTOKENS, mixed, list6 or mix64")
      ->delimiter(',');
  verb.add_option("--batch", options.batches, "rows of decode and verify")->delimiter(',');
  verb.add_option("--draft", options.draft, "tokens of a verify row");
  verb.add_option("--io-dtype", options.io_dtype, "bf16, f16 or f32");
  verb.add_option("--state-dtype", options.state_dtype, "f32, bf16 or f16");
  verb.add_option("--threads", options.threads, "CPU threads, 0 = all")->delimiter(',');
  verb.add_option("--kernel", options.kernel, "kernel of every operator, or auto");
  verb.add_option("--gate", options.gate, "of KDA: model, bounded, softplus or activated");
  verb.add_option("--profile", options.profile, "decays: plain, slow, strong or mixed");
  verb.add_option("--ring", options.ring, "R of the replay operators");
  verb.add_option("--ring-dtype", options.ring_dtype, "of the ring's records: f32 or f16");
  verb.add_option("--suite", options.suite,
                  "a list of cases beside others' times: peers, rest or all; --op and --heads "
                  "choose among them");
  verb.add_option("--device", options.device, "cpu, cuda, cuda:I or auto: a usable GPU, else cpu");
  verb.add_option("--clock", options.clock,
                  "wall, or cpu: the thread's own time, for busy machines");
  verb.add_option("--ref", options.ref, "on or off: the ratio to the kernel ref");
  verb.add_flag("--quick", options.quick, "shorter samples, more noise");
  verb.add_option("--json", options.json, "file of JSON lines, written at the end");
  verb.add_option("--compare", options.compare, "two such files instead: BEFORE AFTER")
      ->expected(2);
  verb.add_option("--fail-above", options.fail_above,
                  "with --compare: exit 1 when a row is slower by more percent, beyond noise");
}

int run(int argc, char** argv) {
  CLI::App app(
      "Linear-attention serving backends: replay traces, check golden vectors, explain kernels.",
      "linestate");
  app.set_version_flag("--version", std::string("linestate ") + linestate::version_string());
  app.option_defaults()->always_capture_default();
  app.require_subcommand(1);
  ReplayOptions replay;
  CheckOptions check;
  ExplainOptions explain;
  BenchOptions bench;
  CLI::App* replay_verb = app.add_subcommand("replay", "run a request trace through the backends");
  CLI::App* check_verb = app.add_subcommand("check", "golden vectors against the operators here");
  CLI::App* explain_verb =
      app.add_subcommand("explain", "which kernel serves a problem, and why not the others");
  CLI::App* bench_verb =
      app.add_subcommand("bench", "time operators and layers against the machine's own limits");
  CLI::App* info_verb = app.add_subcommand("info", "version, build, devices, kernels, models");
  add_replay_options(*replay_verb, replay);
  add_check_options(*check_verb, check);
  add_explain_options(*explain_verb, explain);
  add_bench_options(*bench_verb, bench);
  bool info_json = false;
  info_verb->add_flag("--json", info_json, "one JSON object instead of the table");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return linestate::cli::fail({linestate::StatusCode::kInvalidArgument, error.what()});
  }
  replay.max_running_given = replay_verb->count("--max-running") > 0;
  replay.cache_bytes_given = replay_verb->count("--cache-bytes") > 0;
  replay.pool_bytes_given = replay_verb->count("--pool-bytes") > 0;
  bench.heads_given = bench_verb->count("--heads") > 0;
  bench.fail_above_given = bench_verb->count("--fail-above") > 0;
  if (replay_verb->parsed()) return linestate::cli::run_replay_verb(replay);
  if (check_verb->parsed()) return linestate::cli::run_check(check);
  if (explain_verb->parsed()) return linestate::cli::run_explain(explain);
  if (bench_verb->parsed()) return linestate::cli::run_bench_verb(bench);
  if (info_verb->parsed()) return linestate::cli::run_info(info_json);
  return linestate::cli::kUsageExitCode;
}

// `code`, or the error of a report that did not get out: a full disk shows here at the latest.
int finish_output(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  const std::string reason = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  const int failed = linestate::cli::fail(
      {linestate::StatusCode::kIo, "cannot write to standard output" + reason});
  return code == linestate::cli::kOkExitCode ? failed : code;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error of write(), as a full disk is
  try {
    return finish_output(run(argc, argv));
  } catch (const std::bad_alloc&) {
    return linestate::cli::fail({linestate::StatusCode::kResourceExhausted, "out of memory"});
  } catch (const std::exception& error) {  // of the libraries around; linestate throws nothing
    return linestate::cli::fail({linestate::StatusCode::kInternal, error.what()});
  }
}
