#include "batch/check_speculation.h"

#include <algorithm>
#include <vector>

#include "base/message.h"
#include "batch/check_batch.h"
#include "linestate/ops/draft_tree.h"

namespace linestate {
namespace {

bool live(int32_t slot, int64_t num_slots) { return slot >= 0 && slot < num_slots; }

Status check_parents(std::span<const int32_t> parent, size_t row) {
  for (size_t i = 0; i < parent.size(); ++i) {
    const auto node = static_cast<int32_t>(i);
    if (i == 0 ? parent[0] == -1 : parent[i] >= -1 && parent[i] < node) continue;
    return invalid_argument("parent: expected ", i == 0 ? "-1" : "an earlier node or -1",
                            " for node ", i, " of rows[", row, "], got ", parent[i]);
  }
  return {};
}

Status check_position(const SnapshotRequest& request, const Row& row, size_t i) {
  const int64_t valid = row.num_valid < 0 ? row.tokens : row.num_valid;
  if (request.position > row.start && request.position <= row.start + valid) return {};
  return invalid_argument("snapshots[", i, "].position: expected ", row.start + 1, " to ",
                          row.start + valid, ", what rows[", request.row, "] passes, got ",
                          request.position);
}

}  // namespace

int64_t count_verify_tokens(const ForwardBatch& batch) {
  int64_t tokens = 0;
  for (const Row& row : batch.rows) tokens += row.kind == RowKind::kVerify ? row.tokens : 0;
  return tokens;
}

Status check_drafts(const ForwardBatch& batch, const ForwardCapacity& capacity) {
  for (size_t n = 0; n < batch.rows.size(); ++n) {
    const Row& row = batch.rows[n];
    if (row.kind == RowKind::kVerify && row.tokens > kMaxVerifyNodes) {
      return invalid_argument("rows[", n, "].tokens: expected at most ", kMaxVerifyNodes,
                              " in a verify row, got ", row.tokens);
    }
  }
  if (batch.parent.empty()) return {};
  const int64_t tokens = count_verify_tokens(batch);
  if (static_cast<int64_t>(batch.parent.size()) != tokens) {
    return invalid_argument("parent: expected one entry for each of ", tokens,
                            " verify tokens, got ", batch.parent.size());
  }
  if (tokens > capacity.verify_tokens) {
    return invalid_argument("parent: expected at most ", capacity.verify_tokens,
                            " entries, what the metadata was made for, got ", tokens);
  }
  size_t at = 0;
  for (size_t n = 0; n < batch.rows.size(); ++n) {
    if (batch.rows[n].kind != RowKind::kVerify) continue;
    const auto count = static_cast<size_t>(batch.rows[n].tokens);
    LINESTATE_RETURN_IF_ERROR(check_parents(batch.parent.subspan(at, count), n));
    at += count;
  }
  return {};
}

Status check_snapshots(const ForwardBatch& batch, const ForwardCapacity& capacity,
                       int64_t num_slots) {
  if (static_cast<int64_t>(batch.snapshots.size()) > capacity.snapshots) {
    return invalid_argument("snapshots: expected at most ", capacity.snapshots,
                            ", what the metadata was made for, got ", batch.snapshots.size());
  }
  std::vector<int32_t> taken;  // slots of live rows, then destinations
  for (const Row& row : batch.rows) {
    if (row.kind != RowKind::kPad) taken.push_back(physical_slot(batch, row.slot, num_slots));
  }
  std::sort(taken.begin(), taken.end());
  std::vector<int32_t> targets;
  for (size_t i = 0; i < batch.snapshots.size(); ++i) {
    const SnapshotRequest& request = batch.snapshots[i];
    if (request.row < 0 || static_cast<size_t>(request.row) >= batch.rows.size() ||
        batch.rows[static_cast<size_t>(request.row)].kind == RowKind::kPad) {
      return invalid_argument("snapshots[", i,
                              "].row: expected a row of the batch that is no "
                              "padding, got ",
                              request.row);
    }
    LINESTATE_RETURN_IF_ERROR(
        check_position(request, batch.rows[static_cast<size_t>(request.row)], i));
    const int32_t slot = physical_slot(batch, request.slot, num_slots);
    if (!live(slot, num_slots)) continue;  // not wanted
    if (std::binary_search(taken.begin(), taken.end(), slot)) {
      return invalid_argument("snapshots[", i, "].slot: expected a slot that no row uses, got ",
                              request.slot);
    }
    targets.push_back(slot);
  }
  std::sort(targets.begin(), targets.end());
  const auto twice = std::adjacent_find(targets.begin(), targets.end());
  if (twice == targets.end()) return {};
  return invalid_argument("snapshots: expected distinct slots, got ", *twice, " twice");
}

}  // namespace linestate
