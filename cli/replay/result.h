// What a run measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/replay/shadow.h"
#include "linestate/prefix_cache.h"

namespace linestate::cli {

struct StepSample {
  double end_s = 0.0;  // since the start of the run, everything included
  int64_t running = 0;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  double backend_s = 0.0;   // metadata and layers, without generated activations and verification
  int64_t decode_rows = 0;  // decode and verify rows, which gave decode_tokens
};

struct SpeculationCounts {
  int64_t rows = 0;      // verify rows
  int64_t drafted = 0;   // drafts behind their first token
  int64_t accepted = 0;  // of these
  double accepted_per_row() const {
    return rows > 0 ? static_cast<double>(accepted) / static_cast<double>(rows) : 0.0;
  }
};

struct ReplayResult {
  int64_t requests = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  double wall_s = 0.0;
  double backend_s = 0.0;
  double generation_s = 0.0;
  double verify_s = 0.0;
  double idle_s = 0.0;            // waiting for the trace's clock
  std::vector<double> queue;      // per request: steps, or seconds when the trace's clock runs
  std::vector<StepSample> steps;  // one per step
  int64_t slots = 0;
  int64_t bytes_per_slot = 0;  // the ring's included
  int64_t cache_slots = 0;     // of the prefix cache, on top of `slots`
  int64_t ring_bytes_per_slot = 0;
  int64_t verify_record_bytes = 0;
  SpeculationCounts speculation;
  PrefixCacheStats cache;
  uint64_t outputs_sum = 0;         // OutputSum
  int64_t layers_without_norm = 0;  // norms that span ranks
  VerifySummary verify;
  std::string device_status;  // empty when clean
  int64_t graphs = 0;         // captured: one a layer, shape and part of a step
  int64_t graph_launches = 0;
};

/// Value below which `fraction` of the weight lies (nearest rank); 0 without values.
/// `weights` empty = all equal.
double percentile(const std::vector<double>& values, const std::vector<int64_t>& weights,
                  double fraction);

/// What report and plot show.
struct ReplayNumbers {
  double tokens_per_s = 0.0;  // prefill and decode over backend time
  double tpot_p50_s = 0.0;    // a step's time over its tokens per row
  double tpot_p99_s = 0.0;
  double queue_p50 = 0.0;
  double queue_p99 = 0.0;
  double occupancy_mean = 0.0;  // of the slots, over steps
  double occupancy_max = 0.0;
};
ReplayNumbers summarize(const ReplayResult& result);

}  // namespace linestate::cli
