// Batches in a fixed layout: the same addresses and sizes whatever the batch holds.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/element.h"
#include "linestate/forward_batch.h"

namespace linestate {
namespace {

using Ints = std::vector<int64_t>;

Ints values(const ConstTensorView& tensor) {
  Ints out;
  for (int64_t i = 0; i < tensor.shape[0]; ++i) out.push_back(load_index(tensor, i));
  return out;
}

class BatchShapeTest : public ::testing::Test {
 protected:
  BatchShapeTest()
      : pool_(*StatePool::create(spec(), 8)),
        metadata_(*ForwardMetadata::create(ForwardCapacity{8, 12, 4, 0})) {
    shape_.extend = {2, 20, 1};
    shape_.decode.rows = 3;
    shape_.verify = {2, 8, 1};
  }
  static PoolSpec spec() {
    PoolSpec spec;
    spec.layers.push_back({0, StateLayout::kVK, 2, 16, 16, 0, 0});
    return spec;
  }
  Status prepare(const std::vector<Row>& rows, const std::vector<SnapshotRequest>& snapshots = {},
                 const std::vector<int32_t>& parent = {}) {
    ForwardBatch batch;
    batch.rows = rows;
    batch.snapshots = snapshots;
    batch.parent = parent;
    batch.shape = shape_;
    return metadata_.prepare(batch, pool_, {});
  }
  const Segment& segment(RowKind kind) const { return *metadata_.find_segment(kind); }

  StatePool pool_;
  ForwardMetadata metadata_;
  BatchShape shape_;
};

constexpr Row kExtendRow{6, RowKind::kExtend, 64, 7, 5, -1};
constexpr Row kDecodeRow{3, RowKind::kDecode, 9, 1, -1, -1};
constexpr Row kVerifyRow{1, RowKind::kVerify, 30, 3, 2, -1};

TEST_F(BatchShapeTest, MissingRowsArePaddingAndTokensLieWhereTheirSegmentBegins) {
  // Kinds in another order than the shape's.
  ASSERT_TRUE(prepare({kVerifyRow, kExtendRow, kDecodeRow}).ok());
  ASSERT_EQ(metadata_.segments().size(), 3u);
  EXPECT_EQ(metadata_.num_rows(), 7);
  EXPECT_EQ(metadata_.num_tokens(), 31);
  EXPECT_EQ(metadata_.token_capacity(), 31);
  EXPECT_EQ(metadata_.num_prefills(), 1);
  EXPECT_EQ(metadata_.num_prefill_tokens(), 7);
  EXPECT_EQ(metadata_.num_decodes(), 1);
  EXPECT_EQ(values(metadata_.rows().slot), (Ints{6, -1, 3, -1, -1, 1, -1}));
  EXPECT_EQ(values(metadata_.rows().num_valid), (Ints{5, 0, 1, 0, 0, 2, 0}));
  const Segment& extend = segment(RowKind::kExtend);
  EXPECT_EQ(values(extend.rows.query_start_loc), (Ints{0, 7, 7}));
  EXPECT_EQ(extend.token_end, 20);
  const Segment& decode = segment(RowKind::kDecode);
  EXPECT_EQ(decode.token_begin, 20);
  EXPECT_EQ(values(decode.rows.query_start_loc), (Ints{0, 1, 2, 3}));
  const Segment& verify = segment(RowKind::kVerify);
  EXPECT_EQ(verify.token_begin, 23);
  EXPECT_EQ(values(verify.rows.start), (Ints{30, 0}));
  EXPECT_EQ(values(verify.parent), (Ints{-1, 0, 1, -1, -1, -1, -1, -1}));
}

TEST_F(BatchShapeTest, AddressesAndSizesStayWhenTheBatchChanges) {
  ASSERT_TRUE(prepare({kVerifyRow, kExtendRow, kDecodeRow}, {{1, 66, 5}}, {-1, 0, 0}).ok());
  const std::vector<Segment> before(metadata_.segments().begin(), metadata_.segments().end());
  EXPECT_EQ(values(segment(RowKind::kExtend).snapshots.slot), (Ints{5}));
  EXPECT_EQ(values(segment(RowKind::kVerify).snapshots.slot), (Ints{-1}));
  EXPECT_TRUE(metadata_.snapshot_taken(0));
  ASSERT_TRUE(prepare({}).ok());
  for (size_t i = 0; i < before.size(); ++i) {
    const Segment& now = metadata_.segments()[i];
    EXPECT_EQ(now.kind, before[i].kind);
    EXPECT_EQ(now.rows.slot.data, before[i].rows.slot.data);
    EXPECT_EQ(now.rows.query_start_loc.data, before[i].rows.query_start_loc.data);
    EXPECT_EQ(now.rows.slot.shape[0], before[i].rows.slot.shape[0]);
    EXPECT_EQ(now.token_begin, before[i].token_begin);
    EXPECT_EQ(now.token_end, before[i].token_end);
    EXPECT_EQ(now.parent.data, before[i].parent.data);
    EXPECT_EQ(now.snapshots.slot.data, before[i].snapshots.slot.data);
    EXPECT_EQ(now.taken.data, before[i].taken.data);
    for (const int64_t slot : values(now.rows.slot)) EXPECT_EQ(slot, kPadSlot);
  }
}

TEST_F(BatchShapeTest, WhatTheShapeDoesNotHoldIsRefusedByName) {
  const auto message = [&](const std::vector<Row>& rows) { return prepare(rows).message(); };
  Row other = kExtendRow;
  other.slot = 5;
  other.tokens = 14;
  EXPECT_EQ(message({kExtendRow, other}),
            "shape.extend.tokens: expected at least 21, what the batch holds, got 20");
  EXPECT_EQ(message({Row{kPadSlot, RowKind::kPad, 0, 1, -1, -1}}),
            "rows[0].kind: expected no pad row in a batch with a shape");
  shape_.decode.rows = 0;
  EXPECT_EQ(message({kDecodeRow}),
            "shape.decode.rows: expected at least 1, what the batch holds, got 0");
  shape_.decode.rows = 5;
  EXPECT_EQ(message({}),
            "shape: expected at most 8 rows, the size the metadata was made for, got 9");
  shape_.decode = {2, 3, 0};
  EXPECT_EQ(message({}), "shape.decode.tokens: expected 0 or 2, got 3");
}

}  // namespace
}  // namespace linestate
