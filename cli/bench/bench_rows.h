// Rows, slots and scratch of a case; shared by operators and layers.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/bench/bench_case.h"
#include "cli/bench/bench_device.h"
#include "linestate/rows.h"
#include "linestate/status.h"

namespace linestate::cli {

/// Row tensors of every call: call c takes slots [g * rows, (g + 1) * rows), g = c % groups.
struct BenchRows {
  BenchTensor slot;  // [slots]
  BenchTensor query_start_loc;
  BenchTensor start;
  int64_t rows = 0;
  int64_t slots = 0;

  int64_t groups() const { return slots / rows; }
  /// Slots of the group after that of the call: what a copy writes.
  ConstTensorView next_slots(int64_t call) const { return of_call(call + 1).slot; }
  RowTensors of_call(int64_t call) const;
};
Result<BenchRows> make_bench_rows(BenchDevice& device, const BenchSpec& spec);

/// Tokens that the slot of a row already holds.
int64_t start_of(BenchPhase phase);

/// kResourceExhausted when the case does not fit the machine's memory.
Status check_bench_memory(const BenchDevice& device, const BenchSpec& spec);

}  // namespace linestate::cli
