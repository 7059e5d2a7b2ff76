// Snapshots of states on the way through prefill and decode, on both kernels.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/lightning/lightning_draft_case.h"

namespace linestate::testing {
namespace {

class LightningSnapshot : public ::testing::TestWithParam<const char*> {
 protected:
  Status prefill(LightningCase& test, int threads = 1) {
    return run_lightning(lightning_prefill, lightning_prefill_workspace_bytes, test, GetParam(),
                         threads);
  }
  Status decode(LightningCase& test) {
    return run_lightning(lightning_decode, lightning_decode_workspace_bytes, test, GetParam());
  }
  /// The pool after prefill of the first `tokens` tokens of row n alone.
  HostTensor prefix(const LightningCase& whole, const HostTensor& before, size_t n,
                    int32_t tokens) {
    LightningShape shape = whole.shape;
    const LightningRow& row = shape.rows[n];
    shape.rows = {{row.slot, row.start, tokens}};
    shape.capacity = 0;
    LightningCase piece(shape);
    const int64_t first = whole.token_of(n);
    HostTensor pool = before.clone();
    piece.params.q = whole.q.view().slice(0, first, first + tokens);
    piece.params.k = whole.k.view().slice(0, first, first + tokens);
    piece.params.v = whole.v.view().slice(0, first, first + tokens);
    piece.params.state = pool;
    EXPECT_EQ(prefill(piece).to_string(), "ok");
    return pool;
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, LightningSnapshot, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

// On the grid and inside a block: the bits of a call that ends there, for every pool dtype.
TEST_P(LightningSnapshot, HoldsTheStateAtItsPosition) {
  for (DType pool : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(dtype_name(pool));
    LightningShape shape;
    shape.dim = 32;
    shape.slots = 16;
    shape.state = pool;
    shape.rows = {{0, 50, 90}, {1, 0, 70}, {-1, 0, 3}, {2, 64, 8, 5}};
    LightningCase plain(shape);
    const HostTensor before = plain.state.clone();
    ASSERT_EQ(prefill(plain).to_string(), "ok");
    const std::vector<SnapshotEntry> entries = {{0, 64, 4},   {0, 51, 5},  {0, 140, 6}, {0, 130, 7},
                                                {1, 64, 8},   {1, 1, 9},   {1, 33, 10}, {3, 69, 11},
                                                {0, 130, 12}, {1, 64, -1}, {2, 2, 13},  {1, 5, 99}};
    const SnapshotTensors plan(entries);
    LightningCase with(shape);
    for (int64_t slot = 4; slot < 16; ++slot) fill_nan(with.state.view().slice(0, slot, slot + 1));
    const HostTensor poison = with.state.clone();
    with.params.snapshots = plan.view();
    ASSERT_EQ(prefill(with, 2).to_string(), "ok");
    EXPECT_EQ(with.status.describe(), "");
    EXPECT_EQ(bit_difference(with.out, plain.out), "");
    for (int64_t slot = 0; slot < 4; ++slot) {
      EXPECT_EQ(bit_difference(slot_of(with.state, slot), slot_of(plain.state, slot)), "");
    }
    for (int64_t slot : {13, 14, 15}) {
      EXPECT_EQ(bit_difference(slot_of(with.state, slot), slot_of(poison, slot)), "");
    }
    for (size_t m = 0; m < 9; ++m) {
      const auto n = static_cast<size_t>(entries[m].row);
      const LightningRow& row = shape.rows[n];
      const HostTensor then =
          prefix(plain, before, n, static_cast<int32_t>(entries[m].position - row.start));
      EXPECT_EQ(bit_difference(slot_of(with.state, entries[m].slot), slot_of(then, row.slot)), "")
          << "entry " << m;
    }
  }
}

// A sequence that starts from a snapshot on the grid is the split run, which is the whole.
TEST_P(LightningSnapshot, ResumingOnTheGridIsTheWholeBitForBit) {
  LightningShape shape;
  shape.rows = {{0, 0, 130}};
  LightningCase whole(shape);
  const SnapshotTensors plan({{0, 64, 5}, {0, 128, 4}});
  whole.params.snapshots = plan.view();
  ASSERT_EQ(prefill(whole).to_string(), "ok");
  for (const auto& [position, slot] : {std::pair<int64_t, int32_t>{64, 5}, {128, 4}}) {
    LightningShape rest_shape = shape;
    rest_shape.rows = {{slot, position, static_cast<int32_t>(130 - position)}};
    LightningCase rest(rest_shape);
    rest.params.q = whole.q.view().slice(0, position, 130);
    rest.params.k = whole.k.view().slice(0, position, 130);
    rest.params.v = whole.v.view().slice(0, position, 130);
    rest.params.state = whole.state;
    ASSERT_EQ(prefill(rest).to_string(), "ok");
    EXPECT_EQ(bit_difference(rest.out, whole.out.view().slice(0, position, 130)), "");
    EXPECT_EQ(bit_difference(slot_of(whole.state, slot), slot_of(whole.state, 0)), "");
  }
}

TEST_P(LightningSnapshot, UnreachedPositionsLeaveTheDestination) {
  LightningShape shape;
  shape.dim = 16;
  shape.rows = {{1, 10, 2}, {0, 10, 5, 3}};
  for (int64_t position : {14, 10, 3, -1}) {
    LightningCase test(shape);
    const SnapshotTensors plan({{0, 11, 4}, {1, position, 5}});
    test.params.snapshots = plan.view();
    fill_nan(test.state.view().slice(0, 5, 6));
    const HostTensor before = test.state.clone();
    ASSERT_EQ(prefill(test).to_string(), "ok");
    EXPECT_EQ(bit_difference(slot_of(test.state, 5), slot_of(before, 5)), "");
    EXPECT_NE(bit_difference(slot_of(test.state, 4), slot_of(before, 4)), "");
    EXPECT_EQ(test.status.row_of(DeviceFlag::kSnapshotNotTaken), 1);
  }
}

TEST_P(LightningSnapshot, DecodeKeepsTheStateBehindItsToken) {
  for (DType pool : {DType::kF32, DType::kBF16}) {
    LightningShape shape;
    shape.dim = 32;
    shape.slots = 10;
    shape.state = pool;
    shape.rows = {{0, 191, 1}, {1, 0, 1}, {2, 5, 1, 0}, {-1, 5, 1}, {3, 5, 1}};
    LightningCase plain(shape);
    ASSERT_EQ(decode(plain).to_string(), "ok");
    LightningCase with(shape);
    const SnapshotTensors plan({{0, 192, 5}, {1, 1, 6}, {2, 6, 7}, {3, 6, 8}, {4, 7, 9}});
    with.params.snapshots = plan.view();
    const HostTensor before = with.state.clone();
    ASSERT_EQ(decode(with).to_string(), "ok");
    EXPECT_EQ(bit_difference(with.out, plain.out), "");
    EXPECT_EQ(bit_difference(with.state.view().slice(0, 0, 5), plain.state.view().slice(0, 0, 5)),
              "");
    EXPECT_EQ(bit_difference(slot_of(with.state, 5), slot_of(plain.state, 0)), "");
    EXPECT_EQ(bit_difference(slot_of(with.state, 6), slot_of(plain.state, 1)), "");
    EXPECT_EQ(bit_difference(with.state.view().slice(0, 7, 10), before.view().slice(0, 7, 10)), "");
    EXPECT_EQ(with.status.row_of(DeviceFlag::kSnapshotNotTaken), 2);
  }
}

TEST_P(LightningSnapshot, ThreadsDoNotMatter) {
  LightningShape shape;
  shape.rows = {{0, 50, 40}, {1, 0, 33}};
  HostTensor first;
  for (int threads : {1, 2, 3}) {
    LightningCase test(shape);
    const SnapshotTensors plan({{0, 64, 4}, {1, 20, 5}});
    test.params.snapshots = plan.view();
    ASSERT_EQ(prefill(test, threads).to_string(), "ok");
    if (threads == 1) {
      first = test.state.clone();
    } else {
      EXPECT_EQ(bit_difference(test.state, first), "");
    }
  }
}

TEST_P(LightningSnapshot, RefusesByNameBeforeAnythingIsWritten) {
  LightningShape shape;
  shape.dim = 16;
  shape.rows = {{0, 10, 3}, {1, 10, 2}};
  const auto refusal = [&](const std::vector<SnapshotEntry>& entries) {
    LightningCase test(shape);
    const SnapshotTensors plan(entries);
    const HostTensor before = test.state.clone();
    test.params.snapshots = plan.view();
    const Status status = prefill(test);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(bit_difference(test.state, before), "");
    EXPECT_TRUE(std::isnan(test.out.at(0)));
    return status.message().substr(0, status.message().find(':'));
  };
  EXPECT_EQ(refusal({{0, 12, 1}}), "snapshots.slot");
  EXPECT_EQ(refusal({{0, 12, 0}}), "snapshots.slot");
  EXPECT_EQ(refusal({{0, 12, 5}, {1, 11, 5}}), "snapshots.slot");
  EXPECT_EQ(refusal({{2, 12, 5}}), "snapshots.row");

  shape.rows = {{0, 10, 1}};
  LightningCase test(shape);
  const SnapshotTensors plan({{0, 11, 5}});
  test.params.snapshots = plan.view();
  test.params.rows.start = {};
  EXPECT_EQ(decode(test).message().find("rows.start: "), 0u);
}

}  // namespace
}  // namespace linestate::testing
