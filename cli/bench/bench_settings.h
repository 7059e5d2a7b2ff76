// Options of `linestate bench` as typed, and the cases they mean once checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench/bench_case.h"
#include "cli/bench/bench_measure.h"
#include "cli/device_choice.h"
#include "linestate/status.h"

namespace linestate::cli {

struct BenchOptions {
  std::string device = "cpu";
  std::vector<std::string> ops{"all"};
  std::vector<std::string> models{"kimi-linear", "minimax-01"};
  std::vector<int64_t> heads{4};  // value heads; 0 = the model's
  std::vector<std::string> layouts{"1x1024", "8x1024", "mixed"};
  std::vector<int64_t> batches{1, 32};
  int64_t draft = 4;
  std::string io_dtype = "bf16";
  std::string state_dtype = "f32";
  std::vector<int64_t> threads{0};  // 0 = all
  std::string kernel = "auto";
  std::string gate = "model";  // of KDA layers; model: as the preset has it
  std::string profile = "plain";
  int64_t ring = 16;
  std::string ring_dtype = "f32";
  std::string suite;  // a list of cases instead; --op and --heads choose among them
  bool heads_given = false;
  std::string clock = "wall";
  std::string ref = "on";
  bool quick = false;
  std::string json;                  // file of JSON lines; empty = none
  std::vector<std::string> compare;  // two files
  double fail_above = 0.0;           // percent
  bool fail_above_given = false;
};

struct BenchSettings {
  BenchOptions options;
  DeviceChoice device;
  std::vector<BenchSpec> cases;  // threads as asked, 0 = all
  std::vector<int32_t> threads;
  BenchBudget budget;
  BenchBudget ref_budget;
  BenchClock clock = BenchClock::kWall;
  double roof_seconds = 1.0;
  bool with_ref = true;
};

/// Errors name the option, what was expected and what came.
Result<BenchSettings> resolve_bench(const BenchOptions& options);

/// The layer with `value_heads` heads and key heads in the model's proportion.
/// Errors: kInvalidArgument when that is no whole number.
Result<LayerSpec> with_heads(LayerSpec layer, int64_t value_heads);

}  // namespace linestate::cli
