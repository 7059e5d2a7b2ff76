// The replay itself: a pool, the layers, a scheduler and the step loop.
#pragma once

#include "cli/replay/result.h"
#include "cli/replay/settings.h"
#include "cli/report/progress.h"
#include "linestate/status.h"

namespace linestate::cli {

/// Slots for this run within --pool-bytes.
/// Errors: kResourceExhausted naming bytes per slot and what is needed.
Result<int64_t> choose_slots(const ReplayOptions& options, int64_t slot_bytes);

/// Snapshots that the prefix cache of a run with `slots` slots has room for; 0 without a cache.
/// Errors: kResourceExhausted when --cache-bytes holds not one.
Result<int64_t> choose_cache_slots(const ReplaySettings& settings, int64_t slots,
                                   int64_t slot_bytes);

/// Refuses what the machine has no memory for; `available` < 0 = unknown.
/// Errors: kResourceExhausted with both numbers.
Status check_memory(int64_t needed, int64_t available);
/// MemAvailable of /proc/meminfo in bytes, -1 when it cannot be read.
int64_t available_memory();

/// Runs the trace to its end. Verification that fails is in the result, not an error.
/// Errors: kCancelled when interrupted; kResourceExhausted; what a backend reports.
Result<ReplayResult> run_replay(const ReplaySettings& settings, ProgressStyle style);

}  // namespace linestate::cli
