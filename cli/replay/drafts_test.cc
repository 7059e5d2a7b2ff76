#include "cli/replay/drafts.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "cli/replay/batch_builder.h"

namespace linestate::cli {
namespace {

SpeculationOptions options_of(Speculation kind, int64_t length, double acceptance) {
  SpeculationOptions options;
  options.kind = kind;
  options.draft_length = length;
  options.acceptance = acceptance;
  options.seed = 5;
  return options;
}

const std::vector<TraceRequest>& trace() {
  static const std::vector<TraceRequest> requests{{0, 100, 40, {1}}, {0, 50, 3, {3}}};
  return requests;
}

TEST(Drafts, AcceptedNodesAreAPathFromTheRoot) {
  bool other_child = false;  // a path that leaves a node by another child than its first
  int64_t inert = 0;         // one in eight of 200 * 7, and none in chains
  for (const Speculation kind : {Speculation::kChain, Speculation::kTree}) {
    for (int64_t position = 0; position < 200; ++position) {
      const Draft draft = make_draft(options_of(kind, 9, 0.7), 9, 3, position);
      ASSERT_EQ(draft.width(), 9);
      for (int64_t node = 0; node < 9; ++node) {
        const int32_t parent = draft.parent[static_cast<size_t>(node)];
        ASSERT_LT(parent, node);
        if (node > 0 && parent == -1) {
          ASSERT_TRUE(draft.inert(node));
          ++inert;
        } else {
          ASSERT_FALSE(draft.inert(node) || (parent >= 0 && draft.inert(parent)));
        }
        if (kind == Speculation::kChain) {
          ASSERT_EQ(draft.depth(node), node);
        }
      }
      ASSERT_EQ(draft.accepted.front(), 0);
      for (size_t i = 1; i < draft.accepted.size(); ++i) {
        const int64_t node = draft.accepted[i];
        const int64_t parent = draft.accepted[i - 1];
        ASSERT_FALSE(draft.inert(node));
        ASSERT_EQ(draft.parent[static_cast<size_t>(node)], parent);
        for (int64_t elder = parent + 1; elder < node; ++elder) {
          other_child |= draft.parent[static_cast<size_t>(elder)] == parent;
        }
      }
    }
  }
  EXPECT_TRUE(other_child);
  EXPECT_NEAR(static_cast<double>(inert), 175.0, 60.0);
}

TEST(Drafts, SomeTreesAreSmallerThanTheyMightBe) {
  const SpeculationOptions options = options_of(Speculation::kTree, 6, 0.7);
  int64_t smaller = 0;
  for (int64_t position = 100; position < 130; ++position) {
    StepPlan plan{{}, {}, {{0, position, 1}}, {}};
    plan_drafts(options, trace(), 0, plan);
    ASSERT_EQ(plan.verify.size(), 1u);
    const Draft& draft = plan.verify[0].draft;
    EXPECT_EQ(draft.width(), 6) << "placeholders fill an even step";
    EXPECT_GE(draft.valid, 2);
    smaller += draft.valid < 6 ? 1 : 0;
  }
  EXPECT_GT(smaller, 0);
  EXPECT_LT(smaller, 15);
}

TEST(Drafts, InertNodesAreTokensWhoseOutputIsZero) {
  const SpeculationOptions options = options_of(Speculation::kTree, 12, 0.7);
  int64_t inert = 0;
  for (int64_t position = 100; position < 125; ++position) {
    StepPlan plan{{}, {}, {{0, position, 1}}, {}};
    plan_drafts(options, trace(), 1, plan);
    const Draft draft = plan.verify[0].draft;
    const BuiltBatch batch = build_batch(plan, 1, trace(), [](int64_t) { return 1; });
    ASSERT_EQ(batch.tokens.size(), static_cast<size_t>(draft.width()));
    for (int64_t node = 0; node < draft.valid; ++node) {
      bool padding = false;
      for (const BuiltBatch::TokenRange& range : batch.padding) {
        padding |= range.begin <= node && node < range.end;
      }
      EXPECT_EQ(padding, draft.inert(node)) << node;
      inert += padding ? 1 : 0;
    }
  }
  EXPECT_GT(inert, 0);
}

TEST(Drafts, AcceptanceIsTheChanceOfTheNextDraft) {
  double drafts = 0.0;
  for (int64_t position = 0; position < 4000; ++position) {
    const auto none = make_draft(options_of(Speculation::kChain, 6, 0.0), 6, 1, position);
    EXPECT_EQ(none.accepted.size(), 1u);
    const auto all = make_draft(options_of(Speculation::kChain, 6, 1.0), 6, 1, position);
    EXPECT_EQ(all.accepted.size(), 6u);
    const auto some = make_draft(options_of(Speculation::kChain, 6, 0.7), 6, 1, position);
    drafts += static_cast<double>(some.accepted.size()) - 1.0;
    const auto again = make_draft(options_of(Speculation::kChain, 6, 0.7), 6, 1, position);
    EXPECT_EQ(some.accepted, again.accepted);
  }
  const double expected = 0.7 + 0.49 + 0.343 + 0.2401 + 0.16807;
  EXPECT_NEAR(drafts / 4000.0, expected, 0.1);
}

TEST(Drafts, OnlyRightNodesCarryTheRequestsTokens) {
  const Draft draft = make_draft(options_of(Speculation::kTree, 12, 1.0), 12, 0, 110);
  const std::set<int64_t> right(draft.accepted.begin(), draft.accepted.end());
  for (int64_t node = 0; node < 12; ++node) {
    if (draft.inert(node)) continue;
    const int64_t position = 110 + draft.depth(node);
    const uint64_t token = draft_token_id(draft, node, trace()[0], 0, position);
    EXPECT_EQ(token == token_id(trace()[0], 0, position), right.count(node) == 1) << node;
  }
}

TEST(Drafts, NoRowDraftsPastItsEnd) {
  const SpeculationOptions options = options_of(Speculation::kChain, 8, 1.0);
  for (const int64_t step : {0, 1}) {
    StepPlan plan{{}, {}, {{0, 110, 1}, {1, 51, 1}}, {}};
    plan_drafts(options, trace(), step, plan);
    ASSERT_EQ(plan.verify.size(), 2u);
    EXPECT_EQ(plan.verify[0].row.tokens, 8);
    EXPECT_EQ(plan.verify[1].row.tokens, 2) << "51 and 52 of 53";
    EXPECT_EQ(plan.verify[1].draft.valid, 2);
    EXPECT_EQ(plan.verify[1].draft.width(), step == 0 ? 8 : 2);
  }
  StepPlan last{{}, {}, {{1, 52, 1}}, {}};
  plan_drafts(options, trace(), 0, last);
  EXPECT_TRUE(last.verify.empty());
  EXPECT_EQ(last.decode.size(), 1u) << "the last token is decoded";
}

TEST(Drafts, BatchHasParentsAcceptedNodesAndPlaceholders) {
  const SpeculationOptions options = options_of(Speculation::kTree, 6, 0.7);
  for (int64_t step = 0; step < 12; ++step) {
    StepPlan plan{{}, {{0, 10, 20}}, {{0, 110, 1}, {1, 50, 1}}, {}};
    plan_drafts(options, trace(), step, plan);
    const BuiltBatch batch = build_batch(plan, step, trace(), [](int64_t) { return 1; });
    ASSERT_EQ(batch.accepted.size(), 2u);
    for (const BatchRow& row : batch.requests) {
      if (row.row.kind != RowKind::kVerify) continue;
      EXPECT_EQ(row.advance(), static_cast<int64_t>(row.accepted.size()));
      for (int64_t i = 0; i < row.advance(); ++i) {
        const TokenAt& token = batch.tokens[static_cast<size_t>(row.token_at(i))];
        EXPECT_EQ(token.position, row.row.start + i);
        EXPECT_EQ(token.id,
                  token_id(trace()[static_cast<size_t>(row.request)], row.request, token.position));
      }
    }
    int64_t verify_tokens = 0;
    for (const Row& row : batch.rows)
      verify_tokens += row.kind == RowKind::kVerify ? row.tokens : 0;
    EXPECT_EQ(static_cast<int64_t>(batch.parent.size()), verify_tokens);
    if (step % 2 != 0) continue;
    int64_t placeholders = 0;
    for (const BuiltBatch::TokenRange& range : batch.padding) {
      placeholders += range.end - range.begin;
    }
    EXPECT_GE(placeholders, 3) << "request 1 has 3 tokens left of 6";
  }
}

TEST(Drafts, NamesOfTheKinds) {
  EXPECT_EQ(parse_speculation("tree").value(), Speculation::kTree);
  EXPECT_EQ(parse_speculation("forest").status().message(),
            "--speculation: expected off, chain or tree, got forest");
}

}  // namespace
}  // namespace linestate::cli
