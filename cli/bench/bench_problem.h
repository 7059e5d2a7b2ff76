// A case made ready to run: its tensors on the device and the call over them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cli/bench/bench_case.h"
#include "cli/bench/bench_device.h"
#include "linestate/status.h"

namespace linestate::cli {

struct BenchProblem {
  /// The call-th call. Rows take other slots each time, so that states come from memory: they
  /// return only after more than the last-level cache.
  std::function<Status(int64_t call)> run;
  std::string kernel;  // the row that runs; of layers, of their attention operator
  int64_t turn = 1;    // calls after which memory repeats
};

/// Errors: kResourceExhausted (the machine has no such memory), whatever the operator refuses.
Result<BenchProblem> make_bench_problem(BenchDevice& device, const BenchSpec& spec);

/// Slots for `rows` rows a call that rotate over at least `bytes`: a multiple of rows.
int64_t rotating_slots(int64_t rows, int64_t slot_bytes, int64_t bytes);

}  // namespace linestate::cli
