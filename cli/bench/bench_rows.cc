#include "cli/bench/bench_rows.h"

#include <algorithm>
#include <numeric>

#include "cli/bench/bench_problem.h"
#include "cli/replay/engine.h"

namespace linestate::cli {
namespace {

// Calls of one turn at most: what a graph of one turn and the memory for it stay small with.
constexpr int64_t kMostGroups = 1024;
constexpr int64_t kMostLayerGroups = 128;  // each has metadata of its own

// Turns of whole rings, so that each group of rows meets every place of the ring.
int64_t groups_of(const BenchDevice& device, const BenchSpec& spec) {
  int64_t groups =
      rotating_slots(1, slot_bytes(spec) * spec.layout.rows(), device.rotation_bytes());
  if (device.rotates_tokens()) {
    groups =
        rotating_slots(1, static_cast<int64_t>(work_of(spec).touched), device.rotation_bytes());
    groups = std::max<int64_t>(2, groups);
    groups = std::min(groups, is_layer_op(spec.op) ? kMostLayerGroups : kMostGroups);
  }
  if (!is_ring_op(spec.op)) return groups;
  return (groups + spec.ring_length - 1) / spec.ring_length * spec.ring_length;
}

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
  made.slots = made.rows * groups_of(device, spec);
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
  if (device.device().type != DeviceType::kCpu) return {};  // its allocations fail by themselves
  const int64_t slots = spec.layout.rows() * groups_of(device, spec);
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
