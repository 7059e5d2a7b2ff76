#include <gtest/gtest.h>

#include <cmath>

#include "ops/lightning/lightning_draft_case.h"

namespace linestate::testing {
namespace {

class LightningCommit : public ::testing::TestWithParam<const char*> {
 protected:
  bool exact() const { return std::string(GetParam()) == "ref"; }
  void expect_state(const ConstTensorView& state, const ConstTensorView& want) {
    if (exact()) {
      EXPECT_EQ(bit_difference(state, want), "");
    } else {
      const Difference difference = compare(state, want);
      EXPECT_LE(difference.rel, 5e-7) << difference.text();
    }
  }
  void verify(LightningDraftCase& c) { ASSERT_EQ(c.verify(GetParam()).to_string(), "ok"); }
  void commit(LightningDraftCase& c, const std::vector<int32_t>& accepted, HostTensor& state) {
    ASSERT_EQ(c.commit(accepted, state, GetParam()).to_string(), "ok");
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, LightningCommit, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(LightningCommit, EveryNodeOfARandomTreeGivesDecodeOfItsPath) {
  for (int32_t nodes : {1, 3, 8, 16}) {
    SCOPED_TRACE(nodes);
    LightningShape shape;
    shape.dim = 32;
    shape.rows = {{3, 60, nodes}, {0, 0, nodes}, {-1, 4, 2}};
    LightningDraftCase c(
        shape, LightningDraftCase::random(shape, static_cast<uint64_t>(nodes), nodes > 3));
    fill_nan(c.base.state.view().slice(0, 0, 1));  // the fresh row's slot
    verify(c);
    for (int32_t node = 0; node < nodes; ++node) {
      const std::vector<int64_t> first = path_to(c.trees[0], node);
      const std::vector<int64_t> second = path_to(c.trees[1], node);
      HostTensor want = c.base.state.clone();
      if (!first.empty()) c.decode_path(0, first, want, "ref");
      if (!second.empty()) c.decode_path(1, second, want, "ref");
      HostTensor state = c.base.state.clone();
      commit(c, {first.empty() ? -1 : node, second.empty() ? -1 : node, 7}, state);
      for (int64_t slot : {0, 3}) {
        const bool moved = slot == 0 ? !second.empty() : !first.empty();
        if (moved) expect_state(slot_of(state, slot), slot_of(want, slot));
      }
      for (int64_t slot = 0; slot < 6; ++slot) {
        if (slot == 3 ? !first.empty() : slot == 0 && !second.empty()) continue;
        EXPECT_EQ(bit_difference(slot_of(state, slot), slot_of(c.base.state, slot)), "") << slot;
      }
    }
  }
}

TEST_P(LightningCommit, NoneChangesNoBit) {
  LightningShape shape;
  shape.dim = 16;
  shape.rows = {{0, 0, 3}, {1, 9, 3}, {-1, 0, 2}, {8, 0, 2}, {2, 0, 0}, {3, 0, 3, 0}};
  LightningDraftCase c(shape);
  fill_nan(c.base.state);
  verify(c);
  HostTensor state = c.base.state.clone();
  commit(c, {-1, -1, 1, 0, -1, -1}, state);
  EXPECT_EQ(bit_difference(state, c.base.state), "");
}

TEST_P(LightningCommit, AChainGivesTheStateOfPrefill) {
  LightningShape shape;
  shape.dim = 32;
  shape.rows = {{0, 50, 40}, {2, 0, 5}};
  LightningDraftCase c(shape);
  verify(c);
  LightningCase prefill(shape);
  ASSERT_EQ(run_lightning(lightning_prefill, lightning_prefill_workspace_bytes, prefill, GetParam())
                .to_string(),
            "ok");
  HostTensor state = c.base.state.clone();
  commit(c, {39, 4}, state);
  EXPECT_EQ(bit_difference(state, prefill.state), "");  // also on cpu: the same blocks
}

// P06: accepted counts that change from step to step, beside a row that never speculates.
TEST_P(LightningCommit, SpeculationFollowsPlainDecoding) {
  LightningShape shape;
  shape.dim = 32;
  shape.slots = 3;
  shape.rows = {{2, 0, 9}};
  LightningCase prompt(shape);
  ASSERT_EQ(run_lightning(lightning_prefill, lightning_prefill_workspace_bytes, prompt, GetParam())
                .to_string(),
            "ok");
  HostTensor spec = prompt.state.clone();
  HostTensor plain = prompt.state.clone();
  int64_t start = 9;
  uint64_t seed = 100;
  for (int32_t accepted : {3, 0, 1, 0, 4, 2, 0, 0, 1}) {  // 0: a plain decode
    LightningShape step = shape;
    step.rows = {{2, start, accepted == 0 ? 1 : 4}, {0, start, 1}};
    step.seed = ++seed;
    LightningDraftCase c(step);
    c.base.params.state = spec;
    const std::vector<int64_t> taken = accepted == 0   ? std::vector<int64_t>{0}
                                       : accepted == 1 ? std::vector<int64_t>{0}
                                       : accepted == 2 ? std::vector<int64_t>{0, 1}
                                       : accepted == 3 ? std::vector<int64_t>{0, 1, 2}
                                                       : std::vector<int64_t>{0, 1, 2, 3};
    if (accepted == 0) {
      c.decode_path(0, {0}, spec, GetParam());
      c.decode_path(1, {0}, spec, GetParam());
    } else {
      verify(c);
      commit(c, {accepted - 1, 0}, spec);
    }
    c.decode_path(0, taken, plain, GetParam());
    c.decode_path(1, {0}, plain, GetParam());
    expect_state(spec, plain);
    start += static_cast<int64_t>(taken.size());
  }
}

// P09: one real token and placeholders that share the verify call.
TEST_P(LightningCommit, PlaceholdersDoNotReachTheState) {
  LightningShape shape;
  shape.dim = 32;
  shape.rows = {{2, 20, 4}, {5, 20, 4, 1}};
  LightningDraftCase c(shape);
  for (HostTensor* tensor : {&c.base.q, &c.base.k, &c.base.v}) {
    fill_nan(tensor->view().slice(0, 5, 8));
  }
  verify(c);
  HostTensor want = c.base.state.clone();
  const HostTensor out = c.decode_path(1, {0}, want, "ref");
  HostTensor state = c.base.state.clone();
  commit(c, {2, 0}, state);
  expect_state(slot_of(state, 5), slot_of(want, 5));
  if (exact()) {
    EXPECT_EQ(bit_difference(c.base.out.view().slice(0, 4, 5), out), "");
  }
  EXPECT_EQ(nonzero(c.base.out.view().slice(0, 5, 8)), "");
}

TEST_P(LightningCommit, SnapshotsHoldTheStateAtTheirDepth) {
  for (DType pool : {DType::kF32, DType::kBF16}) {
    LightningShape shape;
    shape.dim = 32;
    shape.slots = 12;
    shape.state = pool;
    shape.rows = {{0, 62, 6}, {1, 0, 4}, {2, 7, 3}, {-1, 0, 1}};
    const std::vector<std::vector<int32_t>> trees = {
        {-1, 0, 0, 2, 3, 4}, {-1, 0, 1, 1}, {-1, 0, 1}, {-1}};
    LightningDraftCase c(shape, trees);
    verify(c);
    const std::vector<int32_t> accepted = {4, 3, -1, -1};  // paths 0 2 3 4 | 0 1 3 | none
    HostTensor plain = c.base.state.clone();
    commit(c, accepted, plain);
    EXPECT_EQ(c.base.status.describe(), "");

    const SnapshotTensors plan({{0, 64, 4},
                                {0, 66, 5},
                                {0, 67, 6},
                                {1, 1, 7},
                                {2, 8, 8},
                                {0, 64, -1},
                                {3, 1, 9},
                                {1, 2, 10},
                                {0, 62, 11}});
    HostTensor state = c.base.state.clone();
    for (int64_t slot = 4; slot < 12; ++slot) fill_nan(state.view().slice(0, slot, slot + 1));
    const HostTensor poison = state.clone();
    HostTensor taken(DType::kU8, {9});
    for (int64_t m = 0; m < 9; ++m) taken.set(m, 77);
    const HostTensor nodes = i32_tensor(accepted);
    LightningCommitParams params = c.commit_params(nodes, state);
    params.snapshots = plan.view();
    params.taken = taken;
    DeviceStatus status;
    ASSERT_EQ(run_sized(lightning_commit, lightning_commit_workspace_bytes, params, GetParam(), 2,
                        &status)
                  .to_string(),
              "ok");
    EXPECT_EQ(status.row_of(DeviceFlag::kSnapshotNotTaken), 0);
    for (int64_t slot = 0; slot < 4; ++slot) {
      EXPECT_EQ(bit_difference(slot_of(state, slot), slot_of(plain, slot)), "") << slot;
    }
    const int want[] = {1, 1, 0, 1, 0, 0, 0, 1, 0};
    for (int64_t m = 0; m < 9; ++m) EXPECT_EQ(taken.at(m), want[m]) << m;
    for (int64_t slot : {6, 8, 9, 11}) {
      EXPECT_EQ(bit_difference(slot_of(state, slot), slot_of(poison, slot)), "") << slot;
    }
    const auto at_depth = [&](const std::vector<int32_t>& shorter, int64_t row_slot, int64_t slot) {
      HostTensor then = c.base.state.clone();
      commit(c, shorter, then);
      EXPECT_EQ(bit_difference(slot_of(state, slot), slot_of(then, row_slot)), "") << slot;
    };
    at_depth({2, -1, -1, -1}, 0, 4);
    at_depth({4, -1, -1, -1}, 0, 5);
    at_depth({-1, 0, -1, -1}, 1, 7);
    at_depth({-1, 1, -1, -1}, 1, 10);
  }
}

TEST_P(LightningCommit, ThreadsAndBatchMatesDoNotMatter) {
  LightningShape shape;
  shape.dim = 32;
  shape.rows = {{3, 60, 6}, {0, 0, 6}, {5, 2, 6}};
  LightningDraftCase c(shape, LightningDraftCase::random(shape, 2, false));
  verify(c);
  HostTensor one = c.base.state.clone();
  ASSERT_EQ(c.commit({5, 4, 3}, one, GetParam(), 1).to_string(), "ok");
  for (int threads : {2, 3}) {
    HostTensor more = c.base.state.clone();
    ASSERT_EQ(c.commit({5, 4, 3}, more, GetParam(), threads).to_string(), "ok");
    EXPECT_EQ(bit_difference(more, one), "");
  }
  HostTensor by_row = c.base.state.clone();
  commit(c, {-1, -1, 3}, by_row);
  commit(c, {-1, 4, -1}, by_row);
  commit(c, {5, -1, -1}, by_row);
  EXPECT_EQ(bit_difference(by_row, one), "");
}

TEST_P(LightningCommit, StridedPoolsAndWideIndices) {
  LightningShape shape;
  shape.dim = 16;
  shape.rows = {{3, 60, 4}, {0, 0, 4}};
  LightningDraftCase c(shape, LightningDraftCase::random(shape, 12, false));
  verify(c);
  HostTensor want = c.base.state.clone();
  commit(c, {3, 2}, want);
  HostTensor turned(DType::kF32, {6, 2, 16, 16});
  for (int64_t s = 0; s < 12; ++s) {
    for (int64_t i = 0; i < 256; ++i) {
      turned.set(s * 256 + (i % 16) * 16 + i / 16, c.base.state.at(s * 256 + i));
    }
  }
  HostTensor nodes(DType::kI64, {2, 3});
  nodes.set(0, 3);
  nodes.set(3, 2);
  LightningCommitParams params = c.commit_params(nodes, turned);
  params.accepted_node = nodes.view().select(1, 0);
  params.state = turned.view().transpose(2, 3);
  ASSERT_EQ(
      run_sized(lightning_commit, lightning_commit_workspace_bytes, params, GetParam()).to_string(),
      "ok");
  EXPECT_EQ(bit_difference(params.state, want), "");
}

TEST_P(LightningCommit, OverflowOfANarrowPoolIsReported) {
  LightningShape shape;
  shape.dim = 16;
  shape.state = DType::kF16;
  shape.rows = {{1, 5, 2}, {4, 5, 2}};
  LightningDraftCase c(shape);
  fill_constant(c.base.k.view().slice(0, 3, 4), 300.0);
  fill_constant(c.base.v.view().slice(0, 3, 4), 300.0);
  verify(c);
  HostTensor state = c.base.state.clone();
  c.base.params.layer = 3;
  const HostTensor nodes = i32_tensor({1, 1});
  LightningCommitParams params = c.commit_params(nodes, state);
  params.layer = 3;
  DeviceStatus status;
  ASSERT_EQ(
      run_sized(lightning_commit, lightning_commit_workspace_bytes, params, GetParam(), 1, &status)
          .to_string(),
      "ok");
  EXPECT_EQ(status.row_of(DeviceFlag::kStateOverflow), 1);
  EXPECT_EQ(status.overflow_slot.load(), 4);
  EXPECT_EQ(status.overflow_layer.load(), 3);
}

TEST_P(LightningCommit, RefusesByNameBeforeAnythingIsWritten) {
  LightningShape shape;
  shape.dim = 16;
  shape.rows = {{1, 5, 3}, {2, 5, 4, 2}};
  const std::vector<std::vector<int32_t>> trees = {{-1, 0, -1}, {-1, 0, 1, 2}};
  LightningDraftCase c(shape, trees);
  verify(c);
  const auto refusal = [&](const std::vector<int32_t>& accepted, auto change) {
    HostTensor state = c.base.state.clone();
    const HostTensor nodes = i32_tensor(accepted);
    LightningCommitParams params = c.commit_params(nodes, state);
    change(params);
    const Status status =
        run_sized(lightning_commit, lightning_commit_workspace_bytes, params, GetParam());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(bit_difference(state, c.base.state), "");
    return status.message().substr(0, status.message().find(':'));
  };
  using Params = LightningCommitParams;
  const auto nothing = [](Params&) {};
  EXPECT_EQ(refusal({1, 2}, nothing), "accepted_node");  // a placeholder
  EXPECT_EQ(refusal({1, 4}, nothing), "accepted_node");  // behind the row
  EXPECT_EQ(refusal({2, 1}, nothing), "accepted_node");  // inert
  EXPECT_EQ(refusal({1, -2}, nothing), "accepted_node");
  EXPECT_EQ(refusal({1}, nothing), "accepted_node");
  const SnapshotTensors live({{0, 6, 2}});
  const SnapshotTensors twice({{0, 6, 4}, {1, 6, 4}});
  HostTensor taken(DType::kU8, {3});
  EXPECT_EQ(refusal({1, 1}, [&](Params& p) { p.snapshots = live.view(); }), "snapshots.slot");
  EXPECT_EQ(refusal({1, 1}, [&](Params& p) { p.snapshots = twice.view(); }), "snapshots.slot");
  EXPECT_EQ(refusal({1, 1}, [&](Params& p) { p.taken = taken; }), "taken");
  EXPECT_EQ(refusal({1, 1}, [&](Params& p) { p.slopes = p.slopes.slice(0, 0, 1); }), "slopes");
  EXPECT_EQ(refusal({1, 1}, [&](Params& p) { p.state = p.state.slice(1, 0, 1); }), "state");
  EXPECT_EQ(refusal({1, 1}, [&](Params& p) { p.record.v = {}; }), "record.v");
  EXPECT_EQ(refusal({1, 1}, [&](Params& p) { p.parent = p.parent.slice(0, 0, 3); }), "parent");
}

}  // namespace
}  // namespace linestate::testing
