#include "cli/replay/batch_builder.h"

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
      batch.requests.push_back({scheduled.request, row, first});
      const TraceRequest& request = trace[static_cast<size_t>(scheduled.request)];
      for (int64_t i = 0; i < scheduled.tokens; ++i) {
        const int64_t position = scheduled.start + i;
        batch.tokens.push_back({token_id(request, scheduled.request, position), position});
      }
    }
  }

  void add_padding(int64_t tokens) {
    const auto begin = static_cast<int64_t>(batch.tokens.size());
    batch.tokens.resize(static_cast<size_t>(begin + tokens));
    batch.padding.push_back({begin, begin + tokens});
  }

  void add_pad_row() {
    Row row;
    row.kind = RowKind::kPad;
    row.tokens = 2;
    batch.rows.push_back(row);
    add_padding(row.tokens);
  }
};

}  // namespace

BuiltBatch build_batch(const StepPlan& plan, int64_t step, std::span<const TraceRequest> trace,
                       const std::function<int32_t(int64_t request)>& slot_of) {
  Builder builder{trace, slot_of, {}};
  const bool extend_first = step % 2 == 0;
  builder.add(extend_first ? plan.extend : plan.decode,
              extend_first ? RowKind::kExtend : RowKind::kDecode);
  if (step % kPaddingPeriod == kPadRowPhase) builder.add_pad_row();
  builder.add(extend_first ? plan.decode : plan.extend,
              extend_first ? RowKind::kDecode : RowKind::kExtend);
  if (step % kPaddingPeriod == kTailPhase) builder.add_padding(kMostPaddingTokens);
  builder.batch.token_capacity = static_cast<int64_t>(builder.batch.tokens.size());
  return std::move(builder.batch);
}

}  // namespace linestate::cli
