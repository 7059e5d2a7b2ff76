#include "base/check.h"

#include <gtest/gtest.h>

#include <climits>
#include <vector>

#include "base/device_status.h"
#include "testing/host_tensor.h"

namespace linestate {
namespace {

using testing::HostTensor;
using testing::i32_tensor;
using testing::i64_tensor;

TEST(Check, ShapeMessageNamesArgumentExpectationAndValue) {
  const HostTensor tensor(DType::kBF16, {3, 4});
  EXPECT_TRUE(check_shape("q", tensor, {3, 4}).ok());
  EXPECT_TRUE(check_shape("q", tensor, {kAnySize, 4}).ok());
  const Status status = check_shape("q", tensor, {3, 5});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "q: expected shape [3, 5], got bf16[3, 4] strides (4, 1) on cpu");
  EXPECT_EQ(check_shape("q", ConstTensorView(), {3}).message(),
            "q: expected shape [3], got undefined");
}

TEST(Check, HeadDims) {
  for (int64_t dim : {16, 64, 80, 128, 256}) EXPECT_TRUE(check_head_dim("K", dim).ok()) << dim;
  for (int64_t dim : {0, -16, 8, 24, 257, 272}) EXPECT_FALSE(check_head_dim("K", dim).ok()) << dim;
}

TEST(Check, SelfOverlap) {
  HostTensor memory(DType::kF32, {64});
  TensorView view = TensorView(memory.data(), DType::kF32, {4, 8});
  EXPECT_TRUE(check_no_self_overlap("out", view).ok());
  EXPECT_TRUE(check_no_self_overlap("out", view.transpose(0, 1)).ok());
  view.stride[0] = 7;
  EXPECT_FALSE(check_no_self_overlap("out", view).ok());
  view.stride[0] = 0;
  EXPECT_FALSE(check_no_self_overlap("out", view).ok());
  view.shape[0] = 1;  // one row cannot clash with itself
  EXPECT_TRUE(check_no_self_overlap("out", view).ok());
}

TEST(Check, OverlapOfTwoTensors) {
  HostTensor memory(DType::kF32, {8, 16});
  const TensorView all = memory.view();
  EXPECT_FALSE(check_no_overlap("out", all.slice(0, 0, 5), "x", all.slice(0, 4, 8)).ok());
  EXPECT_TRUE(check_no_overlap("out", all.slice(0, 0, 4), "x", all.slice(0, 4, 8)).ok());
  // Column ranges of one buffer interleave but do not touch.
  EXPECT_TRUE(check_no_overlap("out", all.slice(1, 0, 8), "x", all.slice(1, 8, 16)).ok());
  EXPECT_FALSE(check_no_overlap("out", all.slice(1, 0, 9), "x", all.slice(1, 8, 16)).ok());
}

// Whether two column ranges touch does not depend on where the buffer begins.
TEST(Check, OverlapOfColumnsAtAnyAddress) {
  HostTensor memory(DType::kF32, {100});
  for (int64_t base = 0; base < 20; ++base) {
    TensorView all(static_cast<float*>(memory.data()) + base, DType::kF32, {8, 10});
    const TensorView left = all.slice(1, 0, 4), right = all.slice(1, 4, 10);
    EXPECT_TRUE(check_no_overlap("out", left, "x", right).ok()) << base;
    EXPECT_TRUE(check_no_overlap("out", right, "x", left).ok()) << base;
    EXPECT_FALSE(check_no_overlap("out", all.slice(1, 0, 5), "x", right).ok()) << base;
    EXPECT_FALSE(check_no_overlap("out", right, "x", all.slice(1, 3, 5)).ok()) << base;
    EXPECT_FALSE(check_no_overlap("out", left, "x", left).ok()) << base;
  }
}

RowTensors rows_of(const HostTensor& slot, const HostTensor& offsets, const HostTensor& start) {
  RowTensors rows;
  rows.slot = slot;
  rows.query_start_loc = offsets;
  rows.start = start;
  return rows;
}

TEST(CheckRows, AcceptsTheContract) {
  const HostTensor slot = i32_tensor({2, -1, 0, INT_MIN});
  const HostTensor offsets = i64_tensor({0, 3, 3, 4, 9});
  const HostTensor start = i64_tensor({0, 0, 70, 1});
  EXPECT_TRUE(check_prefill_rows(rows_of(slot, offsets, start), 12, 3, {}).ok());
}

TEST(CheckRows, RefusesBadOffsetsByRow) {
  const HostTensor slot = i32_tensor({0, 1});
  const HostTensor start = i32_tensor({0, 0});
  struct Case {
    std::vector<int32_t> offsets;
    const char* text;
  };
  const Case cases[] = {
      {{1, 2, 3}, "expected to start at 0, got 1"},
      {{0, 3, 2}, "got 3 then 2 at row 1"},
      {{0, 3, 11}, "up to 10 tokens, got 3 then 11 at row 1"},
      {{0, -1, 2}, "got 0 then -1 at row 0"},
  };
  for (const Case& item : cases) {
    const HostTensor offsets = i32_tensor(item.offsets);
    const Status status = check_prefill_rows(rows_of(slot, offsets, start), 10, 4, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(item.text), std::string::npos) << status.message();
  }
}

TEST(CheckRows, RefusesDuplicateLiveSlotsOnly) {
  const HostTensor offsets = i32_tensor({0, 1, 2, 3});
  const HostTensor start = i32_tensor({0, 0, 0});
  const HostTensor pads = i32_tensor({-1, 5, -1});
  EXPECT_TRUE(check_prefill_rows(rows_of(pads, offsets, start), 3, 6, {}).ok());
  const HostTensor twice = i32_tensor({5, 1, 5});
  const Status status = check_prefill_rows(rows_of(twice, offsets, start), 3, 6, {});
  EXPECT_NE(status.message().find("slot 5 again at row 2"), std::string::npos);
  // Far above the first window of the bitmap.
  const HostTensor far = i32_tensor({200001, 1, 200001});
  EXPECT_FALSE(check_prefill_rows(rows_of(far, offsets, start), 3, 300000, {}).ok());
}

TEST(CheckRows, RaisesSlotOutOfRangeAndCarriesOn) {
  DeviceStatus device_status;
  ExecContext context;
  context.status = &device_status;
  const HostTensor slot = i32_tensor({0, 4, 9});
  const HostTensor offsets = i32_tensor({0, 1, 2, 3});
  const HostTensor start = i32_tensor({0, 0, 0});
  EXPECT_TRUE(check_prefill_rows(rows_of(slot, offsets, start), 3, 4, context).ok());
  EXPECT_TRUE(device_status.raised(DeviceFlag::kSlotOutOfRange));
  EXPECT_EQ(device_status.row_of(DeviceFlag::kSlotOutOfRange), 1);
  EXPECT_FALSE(device_status.raised(DeviceFlag::kDuplicateSlot));
}

TEST(CheckRows, NumValidAndStart) {
  const HostTensor slot = i32_tensor({0, 1});
  const HostTensor offsets = i32_tensor({0, 3, 5});
  const HostTensor start = i32_tensor({0, 0});
  const HostTensor too_many = i32_tensor({3, 3});
  RowTensors rows = rows_of(slot, offsets, start);
  rows.num_valid = too_many;
  EXPECT_NE(check_prefill_rows(rows, 5, 2, {}).message().find("expected 0 to 2, got 3 at row 1"),
            std::string::npos);
  const HostTensor negative = i32_tensor({0, -4});
  EXPECT_NE(check_prefill_rows(rows_of(slot, offsets, negative), 5, 2, {})
                .message()
                .find("rows.start: expected >= 0, got -4 at row 1"),
            std::string::npos);
}

TEST(CheckRows, DecodeReadsStridedSlotColumn) {
  // Column 0 of a table of drafts: the other columns would be duplicates.
  const HostTensor table = i32_tensor({3, 3, 3, 1, 3, 3});
  RowTensors rows;
  rows.slot = table.view().split(0, 3).select(1, 0);
  EXPECT_TRUE(check_decode_rows(rows, 2, 4, {}).ok());
  EXPECT_FALSE(check_decode_rows(rows, 3, 4, {}).ok()) << "3 tokens, 2 rows";
}

TEST(DeviceStatus, KeepsTheLowestRowAndIsSticky) {
  DeviceStatus status;
  raise_flag(&status, DeviceFlag::kNonFinite, 7);
  raise_flag(&status, DeviceFlag::kNonFinite, 3);
  raise_flag(&status, DeviceFlag::kNonFinite, 5);
  raise_overflow(&status, 2, 41, 9);
  EXPECT_EQ(status.row_of(DeviceFlag::kNonFinite), 3);
  EXPECT_EQ(status.row_of(DeviceFlag::kStateOverflow), 2);
  EXPECT_EQ(status.overflow_slot.load(), 41);
  EXPECT_EQ(status.overflow_layer.load(), 9);
  EXPECT_NE(status.describe().find("slot 41, layer 9"), std::string::npos);
  status.reset();
  EXPECT_EQ(status.describe(), "");
}

}  // namespace
}  // namespace linestate
