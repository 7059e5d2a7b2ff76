#include "batch/batch_fill.h"

#include <algorithm>

#include "batch/check_batch.h"

namespace linestate {
namespace {

// One segment before its tensors: rows [first, first + live) of the batch, padded to `rows`.
struct Plan {
  RowKind kind = RowKind::kPad;
  size_t first = 0;
  int64_t live = 0;
  int64_t rows = 0;
  int64_t tokens = 0;
  int64_t snapshots = -1;  // entries of a shape; -1 = those requested
};

int64_t tokens_of(const ForwardBatch& batch, const Plan& plan) {
  int64_t tokens = 0;
  for (int64_t i = 0; i < plan.live; ++i) {
    tokens += batch.rows[plan.first + static_cast<size_t>(i)].tokens;
  }
  return tokens;
}

Plan plan_run(const ForwardBatch& batch, size_t first) {
  Plan plan;
  plan.kind = batch.rows[first].kind;
  plan.first = first;
  size_t end = first;
  while (end < batch.rows.size() && batch.rows[end].kind == plan.kind) ++end;
  plan.live = plan.rows = static_cast<int64_t>(end - first);
  plan.tokens = tokens_of(batch, plan);
  return plan;
}

Plan plan_shaped(const ForwardBatch& batch, RowKind kind, const SegmentShape& shape) {
  Plan plan;
  plan.kind = kind;
  while (plan.first < batch.rows.size() && batch.rows[plan.first].kind != kind) ++plan.first;
  if (plan.first < batch.rows.size()) plan = plan_run(batch, plan.first);
  plan.rows = shape.rows;
  plan.tokens = kind == RowKind::kDecode ? shape.rows : shape.tokens;
  plan.snapshots = shape.snapshots;
  return plan;
}

class Filler {
 public:
  Filler(const ForwardBatch& batch, int64_t num_slots, const BatchPlaces& places, FilledBatch& out)
      : batch_(batch), num_slots_(num_slots), host_(places.host), places_(places), out_(out) {}

  void add(const Plan& plan);
  void finish();

 private:
  void add_rows(const Plan& plan);
  void add_row(const Row* row, RowKind kind);
  void add_parents(const Plan& plan, Segment& segment);
  void add_snapshots(const Plan& plan, Segment& segment);
  void add_entry(int32_t row, int64_t position, int32_t from, int32_t to, bool taken);
  void view_snapshots(int64_t first, Segment& segment);

  template <typename T>
  ConstTensorView view(const T* data, DType dtype, int64_t count) const {
    return ConstTensorView(data, dtype, {count}, places_.device);
  }

  const ForwardBatch& batch_;
  int64_t num_slots_;
  const BatchArrays& host_;
  const BatchPlaces& places_;
  FilledBatch& out_;
  int64_t row_ = 0;
  int64_t token_ = 0;
  int64_t local_ = 0;  // used of segment_query_start_loc
};

void Filler::add_row(const Row* row, RowKind kind) {
  const auto n = static_cast<size_t>(row_);
  host_.query_start_loc[n] = token_;
  const bool pad = row == nullptr || kind == RowKind::kPad;
  host_.slot[n] = pad ? kPadSlot : physical_slot(batch_, row->slot, num_slots_);
  host_.start[n] = row == nullptr ? 0 : row->start;
  host_.num_valid[n] = row == nullptr ? 0 : row->num_valid >= 0 ? row->num_valid : row->tokens;
  host_.force_flush[n] = row != nullptr && row->force_flush ? 1 : 0;
  // A decode row has its token also where only the shape adds it.
  token_ += row != nullptr ? row->tokens : (kind == RowKind::kDecode ? 1 : 0);
  ++row_;
}

void Filler::add_rows(const Plan& plan) {
  int64_t* local = host_.segment_query_start_loc + local_;
  const int64_t begin = token_;
  for (int64_t i = 0; i < plan.rows; ++i) {
    local[i] = token_ - begin;
    add_row(i < plan.live ? &batch_.rows[plan.first + static_cast<size_t>(i)] : nullptr, plan.kind);
  }
  local[plan.rows] = token_ - begin;
  token_ = begin + plan.tokens;
}

void Filler::add(const Plan& plan) {
  Segment segment;
  segment.kind = plan.kind;
  segment.row_begin = row_;
  segment.token_begin = token_;
  const int64_t local = local_;
  add_rows(plan);
  local_ += plan.rows + 1;
  segment.row_end = row_;
  segment.token_end = token_;
  const BatchArrays& at = places_.views;
  const int64_t begin = segment.row_begin;
  segment.rows.slot = view(at.slot + begin, DType::kI32, plan.rows);
  segment.rows.query_start_loc =
      view(at.segment_query_start_loc + local, DType::kI64, plan.rows + 1);
  segment.rows.start = view(at.start + begin, DType::kI64, plan.rows);
  segment.rows.num_valid = view(at.num_valid + begin, DType::kI32, plan.rows);
  if (plan.kind == RowKind::kVerify) add_parents(plan, segment);
  add_snapshots(plan, segment);
  if (plan.kind == RowKind::kExtend) {
    out_.num_prefills += plan.live;
    out_.num_prefill_tokens += tokens_of(batch_, plan);
  }
  if (plan.kind == RowKind::kDecode) out_.num_decodes += plan.live;
  out_.segments.push_back(segment);
}

// Given parents, or in a shape chains written out; -1 behind the rows.
void Filler::add_parents(const Plan& plan, Segment& segment) {
  const bool chains = batch_.parent.empty();
  if (chains && (!batch_.shape.defined() || plan.tokens > places_.parent_room)) return;
  std::fill_n(host_.parent, plan.tokens, -1);
  if (!chains) std::copy(batch_.parent.begin(), batch_.parent.end(), host_.parent);
  int64_t at = 0;
  for (int64_t i = 0; chains && i < plan.live; ++i) {
    const int32_t tokens = batch_.rows[plan.first + static_cast<size_t>(i)].tokens;
    for (int32_t node = 0; node < tokens; ++node) host_.parent[at++] = node - 1;
  }
  out_.num_parents = plan.tokens;
  segment.parent = view(places_.views.parent, DType::kI32, plan.tokens);
}

void Filler::add_entry(int32_t row, int64_t position, int32_t from, int32_t to, bool taken) {
  const size_t at = out_.taken.size();
  host_.snapshot_row[at] = row;
  host_.snapshot_position[at] = position;
  host_.snapshot_source[at] = from;
  host_.snapshot_slot[at] = to;
  out_.taken.push_back(taken ? 1 : 0);
}

void Filler::add_snapshots(const Plan& plan, Segment& segment) {
  const auto first = static_cast<int64_t>(out_.taken.size());
  for (size_t i = 0; i < batch_.snapshots.size(); ++i) {
    const SnapshotRequest& request = batch_.snapshots[i];
    const int64_t local = request.row - static_cast<int64_t>(plan.first);
    if (local < 0 || local >= plan.live) continue;
    const auto n = static_cast<size_t>(segment.row_begin + local);
    const int32_t to = physical_slot(batch_, request.slot, num_slots_);
    const int32_t from = host_.slot[n];
    const bool live = to >= 0 && to < num_slots_ && from >= 0 && from < num_slots_;
    out_.snapshot_at[i] = out_.taken.size();
    // Extend and decode rows pass their positions for certain; commit answers for verify rows.
    add_entry(static_cast<int32_t>(local), request.position, from, to,
              live && plan.kind != RowKind::kVerify);
    host_.force_flush[n] = 1;  // only decode rows of a pool with rings have one
  }
  while (static_cast<int64_t>(out_.taken.size()) < first + plan.snapshots) {
    add_entry(0, 0, kPadSlot, kPadSlot, false);
  }
  view_snapshots(first, segment);
}

void Filler::view_snapshots(int64_t first, Segment& segment) {
  const int64_t count = static_cast<int64_t>(out_.taken.size()) - first;
  if (count == 0) return;
  const BatchArrays& at = places_.views;
  segment.snapshots.row = view(at.snapshot_row + first, DType::kI32, count);
  segment.snapshots.position = view(at.snapshot_position + first, DType::kI64, count);
  segment.snapshots.slot = view(at.snapshot_slot + first, DType::kI32, count);
  segment.snapshot_source = view(at.snapshot_source + first, DType::kI32, count);
  segment.taken = TensorView(at.taken + first, DType::kU8, {count}, places_.device);
}

void Filler::finish() {
  host_.query_start_loc[row_] = token_;
  const BatchArrays& at = places_.views;
  out_.num_rows = row_;
  out_.num_tokens = token_;
  out_.token_capacity = std::max(batch_.token_capacity, token_);
  out_.rows.slot = view(at.slot, DType::kI32, row_);
  out_.rows.query_start_loc = view(at.query_start_loc, DType::kI64, row_ + 1);
  out_.rows.start = view(at.start, DType::kI64, row_);
  out_.rows.num_valid = view(at.num_valid, DType::kI32, row_);
}

}  // namespace

void fill_batch(const ForwardBatch& batch, int64_t num_slots, const BatchPlaces& places,
                FilledBatch& out) {
  out.num_prefills = out.num_decodes = out.num_prefill_tokens = out.num_parents = 0;
  out.segments.clear();
  out.taken.clear();
  out.snapshot_at.assign(batch.snapshots.size(), 0);
  Filler filler(batch, num_slots, places, out);
  if (batch.shape.defined()) {
    const BatchShape& shape = batch.shape;
    if (shape.extend.rows > 0) filler.add(plan_shaped(batch, RowKind::kExtend, shape.extend));
    if (shape.decode.rows > 0) filler.add(plan_shaped(batch, RowKind::kDecode, shape.decode));
    if (shape.verify.rows > 0) filler.add(plan_shaped(batch, RowKind::kVerify, shape.verify));
  } else {
    for (size_t n = 0; n < batch.rows.size();) {
      const Plan plan = plan_run(batch, n);
      filler.add(plan);
      n += static_cast<size_t>(plan.rows);
    }
  }
  filler.finish();
}

}  // namespace linestate
