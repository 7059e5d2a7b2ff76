// Snapshots of windows on the way through prefill and update, on both kernels.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "linestate/ops/causal_conv1d.h"
#include "ops/causal_conv1d/conv_case.h"
#include "testing/compare.h"

namespace linestate::testing {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

Row extend(int32_t slot, int64_t start, int32_t tokens, int32_t num_valid = -1) {
  return {slot, RowKind::kExtend, start, tokens, num_valid, -1};
}

struct Plan {
  HostTensor row, position, slot;
  SnapshotPlan view() const { return {row, position, slot}; }
};

struct Entry {
  int32_t row;
  int64_t position;
  int32_t slot;
};

Plan plan_of(const std::vector<Entry>& entries) {
  std::vector<int32_t> rows, slots;
  std::vector<int64_t> positions;
  for (const Entry& entry : entries) {
    rows.push_back(entry.row);
    positions.push_back(entry.position);
    slots.push_back(entry.slot);
  }
  return {i32_tensor(rows), i64_tensor(positions), i32_tensor(slots)};
}

ConstTensorView slot_of(const HostTensor& pool, int64_t slot) {
  return pool.view().slice(0, slot, slot + 1);
}

class ConvSnapshot : public ::testing::TestWithParam<const char*> {
 protected:
  Status prefill(const CausalConv1dParams& params, DeviceStatus* status = nullptr,
                 int threads = 0) {
    ExecContext context;
    context.status = status;
    context.num_threads = threads;
    return causal_conv1d_prefill(params, context, GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, ConvSnapshot, ::testing::Values("cpu", "ref"));

// The window after m tokens is what a call of m tokens leaves; outputs and the row do not notice.
TEST_P(ConvSnapshot, HoldsTheWindowAtItsPosition) {
  for (int64_t width : {2, 4}) {
    for (DType x : {kF32, kBF16}) {
      ConvShape s;
      s.width = width;
      s.slots = 16;
      s.x = x;
      s.window = width == 2 ? kF32 : x;
      const std::vector<Row> rows = {extend(2, 62, 9), extend(5, 0, 9), extend(-1, 0, 3),
                                     extend(1, 64, 6, 4)};
      ConvCase plain(s, rows), with(s, rows);
      const HostTensor before = plain.window.clone();
      ASSERT_TRUE(prefill(plain.params()).ok());
      const std::vector<Entry> entries = {{0, 64, 7},  {0, 63, 8},  {0, 71, 9},  {1, 1, 10},
                                          {1, 2, 11},  {1, 9, 12},  {3, 68, 13}, {1, 2, 14},
                                          {0, 64, -1}, {0, 65, 16}, {2, 1, 15}};
      const Plan plan = plan_of(entries);
      for (int64_t slot = 7; slot < 16; ++slot)
        fill_nan(with.window.view().slice(0, slot, slot + 1));
      const HostTensor poison = with.window.clone();
      CausalConv1dParams p = with.params();
      p.snapshots = plan.view();
      DeviceStatus status;
      ASSERT_TRUE(prefill(p, &status).ok());
      EXPECT_EQ(status.describe(), "");
      EXPECT_EQ(bit_difference(with.out, plain.out), "");
      for (int64_t slot = 0; slot < 7; ++slot) {
        EXPECT_EQ(bit_difference(slot_of(with.window, slot), slot_of(plain.window, slot)), "");
      }
      EXPECT_EQ(bit_difference(slot_of(with.window, 15), slot_of(poison, 15)), "");
      for (size_t m = 0; m < 8; ++m) {
        const Row& row = rows[static_cast<size_t>(entries[m].row)];
        const auto tokens = static_cast<int32_t>(entries[m].position - row.start);
        ConvCase piece(s, {extend(row.slot, row.start, tokens)});
        const int64_t first = entries[m].row == 0 ? 0 : entries[m].row == 1 ? 9 : 21;
        HostTensor window = before.clone();
        CausalConv1dParams q = piece.params();
        q.x = plain.x.view().slice(0, first, first + tokens);
        q.weight = plain.weight;
        q.window = window;
        ASSERT_TRUE(prefill(q).ok());
        EXPECT_EQ(bit_difference(slot_of(with.window, entries[m].slot), slot_of(window, row.slot)),
                  "")
            << "entry " << m;
      }
    }
  }
}

TEST_P(ConvSnapshot, AResumedRunFromASnapshotIsTheWhole) {
  ConvShape s;
  ConvCase c(s, {extend(0, 0, 130)});
  const Plan plan = plan_of({{0, 64, 7}});
  CausalConv1dParams p = c.params();
  p.snapshots = plan.view();
  ASSERT_TRUE(prefill(p).ok());
  ConvCase rest(s, {extend(7, 64, 66)});
  CausalConv1dParams q = rest.params();
  q.x = c.x.view().slice(0, 64, 130);
  q.weight = c.weight;
  q.bias = c.bias;
  q.window = c.window;
  ASSERT_TRUE(prefill(q).ok());
  EXPECT_EQ(bit_difference(rest.out, c.out.view().slice(0, 64, 130)), "");
  EXPECT_EQ(bit_difference(slot_of(c.window, 7), slot_of(c.window, 0)), "");
}

TEST_P(ConvSnapshot, UnreachedPositionsLeaveTheDestination) {
  ConvShape s;
  const std::vector<Row> rows = {extend(0, 10, 5, 3), extend(1, 10, 2)};
  for (const Entry& entry : {Entry{0, 14, 5}, Entry{0, 10, 5}, Entry{0, 3, 5}, Entry{0, -1, 5}}) {
    ConvCase c(s, rows);
    const Plan plan = plan_of({{1, 11, 6}, entry});
    CausalConv1dParams p = c.params();
    p.snapshots = plan.view();
    fill_nan(c.window.view().slice(0, 5, 6));
    const HostTensor before = c.window.clone();
    DeviceStatus status;
    ASSERT_TRUE(prefill(p, &status).ok());
    EXPECT_EQ(bit_difference(slot_of(c.window, 5), slot_of(before, 5)), "");
    EXPECT_NE(bit_difference(slot_of(c.window, 6), slot_of(before, 6)), "");
    EXPECT_EQ(status.row_of(DeviceFlag::kSnapshotNotTaken), 0);
  }
}

TEST_P(ConvSnapshot, UpdateKeepsTheWindowBehindItsToken) {
  ConvShape s;
  s.slots = 10;
  const std::vector<Row> rows = {extend(0, 63, 1), extend(1, 0, 1), extend(2, 5, 1, 0),
                                 extend(-1, 5, 1)};
  ConvCase plain(s, rows), with(s, rows);
  ASSERT_TRUE(causal_conv1d_update(plain.params(), {}, GetParam()).ok());
  const Plan plan = plan_of({{0, 64, 6}, {1, 1, 7}, {2, 6, 8}, {3, 6, 9}});
  const HostTensor before = with.window.clone();
  CausalConv1dParams p = with.params();
  p.snapshots = plan.view();
  ExecContext context;
  DeviceStatus status;
  context.status = &status;
  ASSERT_TRUE(causal_conv1d_update(p, context, GetParam()).ok());
  EXPECT_EQ(bit_difference(with.out, plain.out), "");
  for (int64_t slot = 0; slot < 6; ++slot) {
    EXPECT_EQ(bit_difference(slot_of(with.window, slot), slot_of(plain.window, slot)), "");
  }
  EXPECT_EQ(bit_difference(slot_of(with.window, 6), slot_of(plain.window, 0)), "");
  EXPECT_EQ(bit_difference(slot_of(with.window, 7), slot_of(plain.window, 1)), "");
  EXPECT_EQ(bit_difference(with.window.view().slice(0, 8, 10), before.view().slice(0, 8, 10)), "");
  EXPECT_EQ(status.row_of(DeviceFlag::kSnapshotNotTaken), 2);
}

TEST_P(ConvSnapshot, RefusesByNameBeforeAnythingIsWritten) {
  ConvShape s;
  const auto message = [&](const std::vector<Entry>& entries) {
    ConvCase c(s, {extend(0, 10, 5), extend(1, 10, 2)});
    const Plan plan = plan_of(entries);
    const HostTensor before = c.window.clone();
    CausalConv1dParams p = c.params();
    p.snapshots = plan.view();
    const Status status = prefill(p);
    EXPECT_EQ(bit_difference(c.window, before), "");
    EXPECT_TRUE(std::isnan(c.out.at(0)));
    return status.to_string();
  };
  EXPECT_EQ(message({{0, 12, 1}}).find("invalid_argument: snapshots.slot: "), 0u);
  EXPECT_EQ(message({{0, 12, 5}, {1, 11, 5}}).find("invalid_argument: snapshots.slot: "), 0u);
  EXPECT_EQ(message({{2, 12, 5}}).find("invalid_argument: snapshots.row: "), 0u);
  EXPECT_EQ(message({{-1, 12, 5}}).find("invalid_argument: snapshots.row: "), 0u);

  ConvCase decode(s, {extend(0, 10, 1)});
  const Plan plan = plan_of({{0, 11, 5}});
  CausalConv1dParams p = decode.params();
  p.rows.start = {};
  p.snapshots = plan.view();
  EXPECT_EQ(causal_conv1d_update(p, {}, GetParam()).message().find("rows.start: "), 0u);
}

TEST_P(ConvSnapshot, ThreadsDoNotMatter) {
  ConvShape s;
  const Plan plan = plan_of({{0, 12, 5}, {1, 2, 6}});
  HostTensor first;
  for (int threads : {1, 2, 3}) {
    ConvCase c(s, {extend(0, 10, 5), extend(1, 0, 2)});
    CausalConv1dParams p = c.params();
    p.snapshots = plan.view();
    ASSERT_TRUE(prefill(p, nullptr, threads).ok());
    if (threads == 1) {
      first = c.window.clone();
    } else {
      EXPECT_EQ(bit_difference(c.window, first), "");
    }
  }
}

}  // namespace
}  // namespace linestate::testing
