#include "cli/bench/bench_rows.h"

#include <algorithm>
#include <numeric>

#include "cli/bench/bench_problem.h"
#include "cli/replay/engine.h"

namespace linestate::cli {
namespace {

// Times the last-level cache that the states of a case take at least.
constexpr int64_t kCaches = 4;

}  // namespace

int64_t rotating_slots(int64_t rows, int64_t slot_bytes, int64_t bytes) {
  const int64_t call_bytes = rows * slot_bytes;
  return rows * std::max<int64_t>(1, (bytes + call_bytes - 1) / call_bytes);
}

RowTensors BenchRows::of_call(int64_t call) const {
  const int64_t first = call % groups() * rows;
  RowTensors tensors;
  tensors.slot = slot.view.slice(0, first, first + rows);
  tensors.query_start_loc = query_start_loc.view;
  tensors.start = start.view;
  return tensors;
}

int64_t start_of(BenchPhase phase) { return phase == BenchPhase::kPrompt ? 0 : 16 * kChunkTokens; }

Result<BenchRows> make_bench_rows(BenchDevice& device, const BenchSpec& spec) {
  BenchRows made;
  made.rows = spec.layout.rows();
  made.slots =
      rotating_slots(made.rows, slot_bytes(spec), kCaches * device.last_level_cache_bytes());
  std::vector<int32_t> slots(static_cast<size_t>(made.slots));
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<int64_t> offsets{0};
  for (const int32_t tokens : spec.layout.tokens) offsets.push_back(offsets.back() + tokens);
  const std::vector<int64_t> starts(static_cast<size_t>(made.rows), start_of(spec.op.phase));
  Result<BenchTensor> slot = device.place(testing::i32_tensor(slots));
  if (!slot.ok()) return slot.status();
  Result<BenchTensor> query_start_loc = device.place(testing::i64_tensor(offsets));
  if (!query_start_loc.ok()) return query_start_loc.status();
  Result<BenchTensor> start = device.place(testing::i64_tensor(starts));
  if (!start.ok()) return start.status();
  made.slot = std::move(slot).value();
  made.query_start_loc = std::move(query_start_loc).value();
  made.start = std::move(start).value();
  return made;
}

Status check_bench_memory(const BenchDevice& device, const BenchSpec& spec) {
  const int64_t slots = rotating_slots(spec.layout.rows(), slot_bytes(spec),
                                       kCaches * device.last_level_cache_bytes());
  // Token tensors and as much again for what operators of a layer hand on, in f32.
  const auto tokens = static_cast<int64_t>(3.0 * work_of(spec).bytes);
  const int64_t needed = slots * slot_bytes(spec) + tokens;
  const int64_t available = available_memory();
  if (available < 0 || needed <= available) return {};
  return Status(StatusCode::kResourceExhausted,
                std::string(spec.op.name) + " with " + spec.layout.name + " and " +
                    std::to_string(spec.layer.heads.num_value_heads) + " heads needs about " +
                    std::to_string(needed) + " bytes and the machine has " +
                    std::to_string(available) + " available; use fewer --heads, --batch or tokens");
}

}  // namespace linestate::cli
