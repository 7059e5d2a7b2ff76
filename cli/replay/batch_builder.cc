#include "cli/replay/batch_builder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cli/replay/drafts.h"

namespace linestate::cli {
namespace {

constexpr int64_t kPaddingPeriod = 7;
constexpr int64_t kPadRowPhase = 3;
constexpr int64_t kTailPhase = 5;

struct Builder {
  std::span<const TraceRequest> trace;
  const std::function<int32_t(int64_t)>& slot_of;
  BuiltBatch batch;

  void add(const std::vector<ScheduledRow>& rows, RowKind kind) {
    for (const ScheduledRow& scheduled : rows) {
      Row row;
      row.slot = slot_of(scheduled.request);
      row.kind = kind;
      row.start = scheduled.start;
      row.tokens = static_cast<int32_t>(scheduled.tokens);
      const auto first = static_cast<int64_t>(batch.tokens.size());
      batch.rows.push_back(row);
      batch.requests.push_back({scheduled.request, row, first, {}});
      const TraceRequest& request = trace[static_cast<size_t>(scheduled.request)];
      for (int64_t i = 0; i < scheduled.tokens; ++i) {
        const int64_t position = scheduled.start + i;
        batch.tokens.push_back({token_id(request, scheduled.request, position), position});
      }
    }
  }

  void add(const DraftedRow& drafted) {
    const Draft& draft = drafted.draft;
    const int64_t index = drafted.row.request;
    Row row;
    row.slot = slot_of(index);
    row.kind = RowKind::kVerify;
    row.start = drafted.row.start;
    row.tokens = static_cast<int32_t>(draft.width());
    row.num_valid = static_cast<int32_t>(draft.valid);
    row.accepted_node = static_cast<int32_t>(draft.accepted.back());
    batch.rows.push_back(row);
    batch.requests.push_back(
        {index, row, static_cast<int64_t>(batch.tokens.size()), draft.accepted});
    batch.parent.insert(batch.parent.end(), draft.parent.begin(), draft.parent.end());
    batch.accepted.push_back(row.accepted_node);
    const TraceRequest& request = trace[static_cast<size_t>(index)];
    for (int64_t node = 0; node < draft.valid; ++node) {
      if (draft.inert(node)) {
        add_padding(1);
        continue;
      }
      const int64_t position = row.start + draft.depth(node);
      batch.tokens.push_back({draft_token_id(draft, node, request, index, position), position});
    }
    if (draft.valid < draft.width()) add_padding(draft.width() - draft.valid);
  }

  void add_kind(const StepPlan& plan, RowKind kind) {
    if (kind == RowKind::kExtend) add(plan.extend, kind);
    if (kind == RowKind::kDecode) add(plan.decode, kind);
    if (kind == RowKind::kVerify) {
      for (const DraftedRow& drafted : plan.verify) add(drafted);
    }
  }

  void add_padding(int64_t tokens) {
    const auto begin = static_cast<int64_t>(batch.tokens.size());
    batch.tokens.resize(static_cast<size_t>(begin + tokens));
    batch.padding.push_back({begin, begin + tokens});
  }

  // A segment of a shape: its rows, then placeholders to the segment's end.
  void add_segment(const StepPlan& plan, RowKind kind, int64_t tokens) {
    const auto begin = static_cast<int64_t>(batch.tokens.size());
    add_kind(plan, kind);
    const int64_t used = static_cast<int64_t>(batch.tokens.size()) - begin;
    if (used < tokens) add_padding(tokens - used);
  }

  void add_pad_row() {
    Row row;
    row.kind = RowKind::kPad;
    row.tokens = 2;
    batch.rows.push_back(row);
    add_padding(row.tokens);
  }
};

int64_t bucket(size_t rows, int64_t most) {
  int64_t size = rows == 0 ? 0 : 1;
  while (size < static_cast<int64_t>(rows)) size *= 2;
  return std::min(size, most);
}

}  // namespace

BatchShape graph_shape(const StepPlan& plan, int64_t most_rows, int64_t draft_length) {
  BatchShape shape;
  if (!plan.extend.empty()) return shape;
  shape.decode.rows = bucket(plan.decode.size(), most_rows);
  shape.verify.rows = bucket(plan.verify.size(), most_rows);
  shape.verify.tokens = shape.verify.rows * draft_length;
  return shape;
}

BuiltBatch build_shaped_batch(const StepPlan& plan, const BatchShape& shape,
                              std::span<const TraceRequest> trace,
                              const std::function<int32_t(int64_t request)>& slot_of) {
  Builder builder{trace, slot_of, {}};
  builder.add_segment(plan, RowKind::kExtend, shape.extend.tokens);
  builder.add_segment(plan, RowKind::kDecode, shape.decode.rows);
  builder.add_segment(plan, RowKind::kVerify, shape.verify.tokens);
  builder.batch.shape = shape;
  builder.batch.token_capacity = static_cast<int64_t>(builder.batch.tokens.size());
  return std::move(builder.batch);
}

BuiltBatch build_batch(const StepPlan& plan, int64_t step, std::span<const TraceRequest> trace,
                       const std::function<int32_t(int64_t request)>& slot_of) {
  Builder builder{trace, slot_of, {}};
  std::array<RowKind, 3> kinds{RowKind::kExtend, RowKind::kDecode, RowKind::kVerify};
  if (step % 2 != 0) std::swap(kinds[0], kinds[1]);
  std::swap(kinds[2], kinds[static_cast<size_t>(step / 2 % 3)]);
  builder.add_kind(plan, kinds[0]);
  if (step % kPaddingPeriod == kPadRowPhase) builder.add_pad_row();
  builder.add_kind(plan, kinds[1]);
  builder.add_kind(plan, kinds[2]);
  if (step % kPaddingPeriod == kTailPhase) builder.add_padding(kMostPaddingTokens);
  builder.batch.token_capacity = static_cast<int64_t>(builder.batch.tokens.size());
  return std::move(builder.batch);
}

}  // namespace linestate::cli
