#include "cli/replay/batch_builder.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace linestate::cli {
namespace {

const std::vector<TraceRequest>& trace() {
  static const std::vector<TraceRequest> requests{
      {0, 100, 5, {1}}, {0, 600, 5, {1, 2}}, {0, 50, 5, {3}}};
  return requests;
}

BuiltBatch build(int64_t step) {
  const StepPlan plan{{}, {{1, 520, 80}, {2, 0, 7}}, {{0, 103, 1}}, {}};
  return build_batch(plan, step, trace(),
                     [](int64_t request) { return static_cast<int32_t>(10 + request); });
}

TEST(BatchBuilder, KindsAreContiguousAndTokensLineUp) {
  std::set<RowKind> first_kinds;
  int64_t padded_rows = 0;
  int64_t tails = 0;
  for (int64_t step = 0; step < 14; ++step) {
    const BuiltBatch batch = build(step);
    first_kinds.insert(batch.rows.front().kind);
    int64_t at = 0;
    size_t live = 0;
    std::vector<RowKind> order;
    for (const Row& row : batch.rows) {
      if (order.empty() || order.back() != row.kind) order.push_back(row.kind);
      if (row.kind == RowKind::kPad) {
        ++padded_rows;
        EXPECT_EQ(row.slot, kPadSlot);
      } else {
        const BatchRow& request = batch.requests[live++];
        EXPECT_EQ(request.first_token, at);
        EXPECT_EQ(row.slot, 10 + request.request);
        EXPECT_EQ(row.start, request.row.start);
        for (int64_t i = 0; i < row.tokens; ++i) {
          const TokenAt& token = batch.tokens[static_cast<size_t>(at + i)];
          EXPECT_EQ(token.position, row.start + i);
          EXPECT_EQ(token.id, token_id(trace()[static_cast<size_t>(request.request)],
                                       request.request, token.position));
        }
      }
      at += row.tokens;
    }
    EXPECT_EQ(std::set<RowKind>(order.begin(), order.end()).size(), order.size());
    EXPECT_EQ(live, 3u);
    EXPECT_EQ(batch.token_capacity, static_cast<int64_t>(batch.tokens.size()));
    if (at < batch.token_capacity) {
      ++tails;
      ASSERT_EQ(batch.padding.size(), 1u);
      EXPECT_EQ(batch.padding[0].begin, at);
      EXPECT_EQ(batch.padding[0].end, batch.token_capacity);
      EXPECT_LE(batch.token_capacity - at, kMostPaddingTokens);
    }
  }
  EXPECT_EQ(first_kinds, (std::set<RowKind>{RowKind::kExtend, RowKind::kDecode}));
  EXPECT_EQ(padded_rows, 2);
  EXPECT_EQ(tails, 2);
}

}  // namespace
}  // namespace linestate::cli
