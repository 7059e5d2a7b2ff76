#include "batch/check_batch.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/element.h"
#include "base/message.h"
#include "batch/check_speculation.h"

namespace linestate {
namespace {

Status check_row(const Row& row, size_t n) {
  if (row.start < 0) {
    return invalid_argument("rows[", n, "].start: expected >= 0, got ", row.start);
  }
  if (row.tokens < 0) {
    return invalid_argument("rows[", n, "].tokens: expected >= 0, got ", row.tokens);
  }
  if (row.kind == RowKind::kDecode && row.tokens != 1) {
    return invalid_argument("rows[", n, "].tokens: expected 1 in a decode row, got ", row.tokens);
  }
  if (row.num_valid < -1 || row.num_valid > row.tokens) {
    return invalid_argument("rows[", n, "].num_valid: expected -1 (all) or 0 to ", row.tokens,
                            ", got ", row.num_valid);
  }
  return {};
}

// One run a kind: the kind of row n must not have ended earlier.
Status check_kinds(std::span<const Row> rows) {
  std::array<bool, 4> ended{};
  for (size_t n = 0; n < rows.size(); ++n) {
    const auto kind = static_cast<size_t>(rows[n].kind);
    if (kind >= ended.size()) {
      return invalid_argument("rows[", n, "].kind: expected extend, decode, verify or pad, got ",
                              kind);
    }
    if (n > 0 && rows[n].kind != rows[n - 1].kind) {
      ended[static_cast<size_t>(rows[n - 1].kind)] = true;
      if (ended[kind]) {
        return invalid_argument("rows[", n,
                                "].kind: expected rows of one kind to be contiguous, "
                                "got ",
                                row_kind_name(rows[n].kind), " again");
      }
    }
  }
  return {};
}

// A pad row's slot id means nothing, so it cannot clash with a live one.
Status check_slots(const ForwardBatch& batch, int64_t num_slots) {
  const std::span<const Row> rows = batch.rows;
  std::vector<int32_t> slots(rows.size());
  for (size_t n = 0; n < rows.size(); ++n) {
    const bool pad = rows[n].kind == RowKind::kPad;
    slots[n] = pad ? kPadSlot : physical_slot(batch, rows[n].slot, num_slots);
  }
  return check_distinct(
      batch.slot_table.defined() ? "slot_table[rows.slot]" : "rows.slot",
      ConstTensorView(slots.data(), DType::kI32, {static_cast<int64_t>(slots.size())}), num_slots);
}

Status check_table(const ConstTensorView& table) {
  if (!table.defined()) return {};
  LINESTATE_RETURN_IF_ERROR(check_shape("slot_table", table, {kAnySize}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("slot_table", table, {DType::kI32, DType::kI64}));
  return check_placement("slot_table", table, {});
}

Status check_live(const char* name, size_t i, int32_t id, const ForwardBatch& batch,
                  int64_t num_slots) {
  const int32_t slot = physical_slot(batch, id, num_slots);
  if (slot >= 0 && slot < num_slots) return {};
  return invalid_argument(name, "[", i, "]: expected a slot from 0 to ", num_slots - 1, ", got ",
                          id, batch.slot_table.defined() ? ", which slot_table does not map" : "");
}

// `copied` holds the slots of pre.copy, either side.
Status check_restores(const ForwardBatch& batch, std::vector<int32_t> copied, int64_t num_slots) {
  std::sort(copied.begin(), copied.end());
  std::vector<int32_t> restored;
  for (size_t i = 0; i < batch.pre.restore.size(); ++i) {
    const DeferredSlotWork::Restore& restore = batch.pre.restore[i];
    LINESTATE_RETURN_IF_ERROR(check_live("pre.restore.slot", i, restore.slot, batch, num_slots));
    const int32_t slot = physical_slot(batch, restore.slot, num_slots);
    if (std::binary_search(copied.begin(), copied.end(), slot)) {
      return invalid_argument("pre.restore[", i, "].slot: expected no slot of pre.copy, got ",
                              restore.slot);
    }
    if (std::find(restored.begin(), restored.end(), slot) != restored.end()) {
      return invalid_argument("pre.restore[", i, "].slot: expected distinct slots, got ",
                              restore.slot, " twice");
    }
    restored.push_back(slot);
  }
  return {};
}

Status check_deferred(const ForwardBatch& batch, int64_t num_slots) {
  const DeferredSlotWork& pre = batch.pre;
  if (pre.empty()) return {};
  const bool extends = std::any_of(batch.rows.begin(), batch.rows.end(),
                                   [](const Row& row) { return row.kind == RowKind::kExtend; });
  if (!extends) {
    return invalid_argument("pre: expected no slot work in a batch without extend rows, got ",
                            pre.clear.size(), " clears, ", pre.copy.size(), " copies and ",
                            pre.restore.size(), " restores");
  }
  for (size_t i = 0; i < pre.clear.size(); ++i) {
    LINESTATE_RETURN_IF_ERROR(check_live("pre.clear", i, pre.clear[i], batch, num_slots));
  }
  std::vector<int32_t> sources;
  std::vector<int32_t> targets;
  for (size_t i = 0; i < pre.copy.size(); ++i) {
    LINESTATE_RETURN_IF_ERROR(check_live("pre.copy.src", i, pre.copy[i].src, batch, num_slots));
    LINESTATE_RETURN_IF_ERROR(check_live("pre.copy.dst", i, pre.copy[i].dst, batch, num_slots));
    sources.push_back(physical_slot(batch, pre.copy[i].src, num_slots));
    targets.push_back(physical_slot(batch, pre.copy[i].dst, num_slots));
  }
  std::sort(sources.begin(), sources.end());
  std::sort(targets.begin(), targets.end());
  for (size_t i = 0; i < targets.size(); ++i) {
    if (i > 0 && targets[i] == targets[i - 1]) {
      return invalid_argument("pre.copy.dst: expected distinct slots, got ", targets[i], " twice");
    }
    if (std::binary_search(sources.begin(), sources.end(), targets[i])) {
      return invalid_argument("pre.copy: expected no slot as both src and dst, got ", targets[i]);
    }
  }
  sources.insert(sources.end(), targets.begin(), targets.end());
  return check_restores(batch, std::move(sources), num_slots);
}

// Rows, tokens and snapshot requests of one kind against its part of the shape.
Status check_segment_shape(const ForwardBatch& batch, RowKind kind, const SegmentShape& shape) {
  const std::string name = concat("shape.", row_kind_name(kind));
  SegmentShape need;
  for (const Row& row : batch.rows) {
    if (row.kind != kind) continue;
    ++need.rows;
    need.tokens += row.tokens;
  }
  for (const SnapshotRequest& request : batch.snapshots) {
    if (batch.rows[static_cast<size_t>(request.row)].kind == kind) ++need.snapshots;
  }
  const bool decode = kind == RowKind::kDecode;
  const struct {
    const char* field;
    int64_t have;
    int64_t need;
  } fields[] = {{".rows", shape.rows, need.rows},
                {".tokens", decode ? shape.rows : shape.tokens, need.tokens},
                {".snapshots", shape.snapshots, need.snapshots}};
  for (const auto& field : fields) {
    if (field.have >= field.need && field.have >= 0) continue;
    return invalid_argument(name, field.field, ": expected at least ", field.need,
                            ", what the batch holds, got ", field.have);
  }
  if (!decode || shape.tokens == 0 || shape.tokens == shape.rows) return {};
  return invalid_argument(name, ".tokens: expected 0 or ", shape.rows, ", got ", shape.tokens);
}

Status check_batch_shape(const ForwardBatch& batch, const ForwardCapacity& capacity) {
  const BatchShape& shape = batch.shape;
  if (!shape.defined()) return {};
  LINESTATE_RETURN_IF_ERROR(check_segment_shape(batch, RowKind::kExtend, shape.extend));
  LINESTATE_RETURN_IF_ERROR(check_segment_shape(batch, RowKind::kDecode, shape.decode));
  LINESTATE_RETURN_IF_ERROR(check_segment_shape(batch, RowKind::kVerify, shape.verify));
  for (size_t n = 0; n < batch.rows.size(); ++n) {
    if (batch.rows[n].kind != RowKind::kPad) continue;
    return invalid_argument("rows[", n, "].kind: expected no pad row in a batch with a shape");
  }
  if (shape.num_rows() > capacity.rows) {
    return invalid_argument("shape: expected at most ", capacity.rows,
                            " rows, the size the metadata was made for, got ", shape.num_rows());
  }
  if (shape.num_snapshots() > capacity.snapshots) {
    return invalid_argument("shape: expected at most ", capacity.snapshots,
                            " snapshots, what the metadata was made for, got ",
                            shape.num_snapshots());
  }
  if (!batch.parent.empty() && shape.verify.tokens > capacity.verify_tokens) {
    return invalid_argument("shape.verify.tokens: expected at most ", capacity.verify_tokens,
                            " with parents, what the metadata was made for, got ",
                            shape.verify.tokens);
  }
  if (batch.token_capacity == 0 || batch.token_capacity >= shape.num_tokens()) return {};
  return invalid_argument("token_capacity: expected 0 or at least ", shape.num_tokens(),
                          ", the tokens of the shape, got ", batch.token_capacity);
}

}  // namespace

int32_t physical_slot(const ForwardBatch& batch, int32_t id, int64_t num_slots) {
  if (!batch.slot_table.defined()) return id;
  if (id < 0 || id >= batch.slot_table.shape[0]) return kPadSlot;
  const int64_t slot = load_index(batch.slot_table, id);
  return slot >= 0 && slot < num_slots ? static_cast<int32_t>(slot) : kPadSlot;
}

DeferredSlotWork physical_work(const ForwardBatch& batch, int64_t num_slots) {
  DeferredSlotWork work = batch.pre;
  for (int32_t& slot : work.clear) slot = physical_slot(batch, slot, num_slots);
  for (DeferredSlotWork::Copy& copy : work.copy) {
    copy.src = physical_slot(batch, copy.src, num_slots);
    copy.dst = physical_slot(batch, copy.dst, num_slots);
  }
  for (DeferredSlotWork::Restore& restore : work.restore) {
    restore.slot = physical_slot(batch, restore.slot, num_slots);
  }
  return work;
}

Status check_batch(const ForwardBatch& batch, const ForwardCapacity& capacity, int64_t num_slots) {
  const auto num_rows = static_cast<int64_t>(batch.rows.size());
  if (num_rows > capacity.rows) {
    return invalid_argument("rows: expected at most ", capacity.rows,
                            ", the size the metadata was made for, got ", num_rows);
  }
  int64_t tokens = 0;
  for (size_t n = 0; n < batch.rows.size(); ++n) {
    LINESTATE_RETURN_IF_ERROR(check_row(batch.rows[n], n));
    tokens += batch.rows[n].tokens;
  }
  if (batch.token_capacity < 0 || (batch.token_capacity > 0 && batch.token_capacity < tokens)) {
    return invalid_argument("token_capacity: expected 0 or at least ", tokens,
                            ", the tokens of the rows, got ", batch.token_capacity);
  }
  LINESTATE_RETURN_IF_ERROR(check_kinds(batch.rows));
  LINESTATE_RETURN_IF_ERROR(check_table(batch.slot_table));
  LINESTATE_RETURN_IF_ERROR(check_slots(batch, num_slots));
  LINESTATE_RETURN_IF_ERROR(check_drafts(batch, capacity));
  LINESTATE_RETURN_IF_ERROR(check_snapshots(batch, capacity, num_slots));
  LINESTATE_RETURN_IF_ERROR(check_batch_shape(batch, capacity));
  return check_deferred(batch, num_slots);
}

}  // namespace linestate
