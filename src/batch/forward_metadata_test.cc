#include <gtest/gtest.h>

#include <climits>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/element.h"
#include "linestate/forward_batch.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate {
namespace {

using testing::HostTensor;

Row extend(int32_t slot, int64_t start, int32_t tokens, int32_t num_valid = -1) {
  return {slot, RowKind::kExtend, start, tokens, num_valid, -1};
}
Row decode(int32_t slot, int64_t start = 5) { return {slot, RowKind::kDecode, start, 1, -1, -1}; }
Row pad(int32_t tokens, int32_t slot = kPadSlot) {
  return {slot, RowKind::kPad, 0, tokens, -1, -1};
}

std::vector<int64_t> values(const ConstTensorView& tensor) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < tensor.shape[0]; ++i) out.push_back(load_index(tensor, i));
  return out;
}

using Ints = std::vector<int64_t>;

class ForwardMetadataTest : public ::testing::Test {
 protected:
  ForwardMetadataTest()
      : pool_(*StatePool::create(spec(), 8)), metadata_(*ForwardMetadata::create(16)) {
    uint64_t seed = 1;
    for (const TensorView& plane : pool_.planes()) testing::fill_normal(plane, seed++);
  }

  static PoolSpec spec() {
    PoolSpec spec;
    spec.layers.push_back({0, StateLayout::kVK, 2, 16, 16, 48, 3});
    spec.layers.push_back({3, StateLayout::kKV, 2, 16, 16, 0, 0});
    return spec;
  }

  Status prepare(const std::vector<Row>& rows, DeferredSlotWork pre = {}, int64_t capacity = 0) {
    ForwardBatch batch;
    batch.rows = rows;
    batch.pre = std::move(pre);
    batch.token_capacity = capacity;
    return metadata_.prepare(batch, pool_, {});
  }

  std::vector<HostTensor> pool_copy() const {
    std::vector<HostTensor> copy;
    for (const TensorView& plane : pool_.planes()) copy.push_back(testing::copy_of(plane));
    return copy;
  }

  StatePool pool_;
  ForwardMetadata metadata_;
};

TEST_F(ForwardMetadataTest, MixedBatchInAnyKindOrder) {
  ASSERT_TRUE(prepare({decode(3, 70), decode(1, 9), pad(2, 4), extend(6, 0, 5), extend(0, 64, 0),
                       extend(7, 128, 7, 4)},
                      {}, 32)
                  .ok());
  EXPECT_EQ(metadata_.num_rows(), 6);
  EXPECT_EQ(metadata_.num_tokens(), 16);
  EXPECT_EQ(metadata_.token_capacity(), 32);
  EXPECT_EQ(metadata_.num_decodes(), 2);
  EXPECT_EQ(metadata_.num_prefills(), 3);
  EXPECT_EQ(metadata_.num_prefill_tokens(), 12);
  EXPECT_EQ(values(metadata_.rows().slot), (Ints{3, 1, -1, 6, 0, 7}));
  EXPECT_EQ(values(metadata_.rows().query_start_loc), (Ints{0, 1, 2, 4, 9, 9, 16}));
  EXPECT_EQ(values(metadata_.rows().start), (Ints{70, 9, 0, 0, 64, 128}));
  EXPECT_EQ(values(metadata_.rows().num_valid), (Ints{1, 1, 2, 5, 0, 4}));

  ASSERT_EQ(metadata_.segments().size(), 3u);
  const Segment& extends = metadata_.segments()[2];
  EXPECT_EQ(extends.kind, RowKind::kExtend);
  EXPECT_EQ(extends.row_begin, 3);
  EXPECT_EQ(extends.token_begin, 4);
  EXPECT_EQ(extends.token_end, 16);
  EXPECT_EQ(values(extends.rows.query_start_loc), (Ints{0, 5, 5, 12}));
  EXPECT_EQ(values(extends.rows.slot), (Ints{6, 0, 7}));
  EXPECT_EQ(values(metadata_.segments()[0].rows.query_start_loc), (Ints{0, 1, 2}));
}

TEST_F(ForwardMetadataTest, IdleBatch) {
  ASSERT_TRUE(prepare({}, {}, 4).ok());
  EXPECT_TRUE(metadata_.idle());
  EXPECT_EQ(metadata_.token_capacity(), 4);
  EXPECT_TRUE(metadata_.segments().empty());
  EXPECT_EQ(values(metadata_.rows().query_start_loc), (Ints{0}));
}

TEST_F(ForwardMetadataTest, RefillsInPlaceSoThatAddressesStay) {
  ASSERT_TRUE(prepare({decode(0), decode(1), decode(2)}).ok());
  const void* slots = metadata_.rows().slot.data;
  const void* local = metadata_.segments()[0].rows.query_start_loc.data;
  ASSERT_TRUE(prepare({decode(5)}).ok());
  EXPECT_EQ(metadata_.rows().slot.data, slots);
  EXPECT_EQ(metadata_.segments()[0].rows.query_start_loc.data, local);
  EXPECT_EQ(values(metadata_.rows().slot), (Ints{5}));
}

TEST_F(ForwardMetadataTest, TwoBatchesMayBeAlive) {
  Result<ForwardMetadata> other = ForwardMetadata::create(16);
  ASSERT_TRUE(other.ok());
  const std::vector<Row> rows = {decode(7)};
  ForwardBatch batch;
  batch.rows = rows;
  ASSERT_TRUE(prepare({decode(0), decode(1)}).ok());
  ASSERT_TRUE(other->prepare(batch, pool_, {}).ok());
  EXPECT_EQ(values(metadata_.rows().slot), (Ints{0, 1}));
  EXPECT_EQ(values(other->rows().slot), (Ints{7}));
}

TEST_F(ForwardMetadataTest, RefusesByRowAndFieldAndChangesNothing) {
  ASSERT_TRUE(prepare({decode(3), decode(4)}).ok());
  const std::vector<HostTensor> before = pool_copy();
  struct Case {
    std::vector<Row> rows;
    DeferredSlotWork pre;
    int64_t capacity;
    const char* text;
  };
  const std::vector<Row> one = {extend(0, 0, 2)};
  std::vector<Case> cases;
  cases.push_back({{decode(0), extend(1, 0, 2), decode(2)}, {}, 0, "rows[2].kind: expected rows"});
  cases.push_back({{extend(0, -1, 2)}, {}, 0, "rows[0].start: expected >= 0, got -1"});
  cases.push_back({{extend(0, 0, -2)}, {}, 0, "rows[0].tokens: expected >= 0, got -2"});
  cases.push_back({{extend(0, 0, 2, 3)}, {}, 0, "rows[0].num_valid: expected -1 (all) or 0 to 2"});
  cases.push_back({{extend(0, 0, 2, -2)}, {}, 0, "rows[0].num_valid"});
  cases.push_back({{extend(1, 0, 2), extend(1, 0, 2)}, {}, 0, "slot 1 again at row 1"});
  cases.push_back({{extend(1, 0, 2), decode(1)}, {}, 0, "slot 1 again at row 1"});
  cases.push_back({one, {}, 1, "token_capacity: expected 0 or at least 2"});
  cases.push_back({one, {}, -1, "token_capacity"});
  cases.push_back({{decode(0)}, {{1}, {}}, 0, "pre: expected no slot work in a batch without"});
  cases.push_back({{}, {{1}, {}}, 0, "pre: expected no slot work"});
  cases.push_back({one, {{8}, {}}, 0, "pre.clear[0]: expected a slot from 0 to 7, got 8"});
  cases.push_back({one, {{1}, {{2, -1}}}, 0, "pre.copy.dst[0]: expected a slot"});
  cases.push_back({one, {{1}, {{2, 3}, {4, 3}}}, 0, "pre.copy.dst: expected distinct slots"});
  cases.push_back({one, {{1}, {{2, 3}, {3, 4}}}, 0, "no slot as both src and dst, got 3"});
  cases.push_back({std::vector<Row>(17, pad(0)), {}, 0, "rows: expected at most 16"});
  Row two = decode(0);
  two.tokens = 2;
  cases.push_back({{two}, {}, 0, "rows[0].tokens: expected 1 in a decode row, got 2"});
  Row odd = decode(0);
  odd.kind = static_cast<RowKind>(9);
  cases.push_back({{odd}, {}, 0, "rows[0].kind: expected extend, decode, verify or pad, got 9"});
  for (const Case& item : cases) {
    const Status status = prepare(item.rows, item.pre, item.capacity);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << item.text;
    EXPECT_NE(status.message().find(item.text), std::string::npos) << status.message();
    EXPECT_EQ(values(metadata_.rows().slot), (Ints{3, 4})) << item.text;
  }
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(testing::bit_difference(pool_.planes()[i], before[i]), "");
  }
}

TEST_F(ForwardMetadataTest, PadRowsMayNameALiveSlot) {
  ASSERT_TRUE(prepare({decode(2), pad(1, 2)}).ok());
  EXPECT_EQ(values(metadata_.rows().slot), (Ints{2, -1}));
}

TEST_F(ForwardMetadataTest, DeferredWorkClearsThenCopiesAllLayersOnce) {
  const std::vector<HostTensor> before = pool_copy();
  ASSERT_TRUE(prepare({extend(5, 0, 3)}, {{1, 2}, {{1, 3}, {4, 6}}}).ok());
  for (size_t i = 0; i < before.size(); ++i) {
    const TensorView plane = pool_.planes()[i];
    const ConstTensorView old = before[i];
    auto slot = [&](int64_t s) { return plane.slice(0, s, s + 1); };
    EXPECT_EQ(testing::nonzero(slot(1)), "") << i;
    EXPECT_EQ(testing::nonzero(slot(2)), "") << i;
    EXPECT_EQ(testing::nonzero(slot(3)), "") << "copy of the cleared slot, plane " << i;
    EXPECT_EQ(testing::bit_difference(slot(6), old.slice(0, 4, 5)), "") << i;
    for (int64_t s : {0, 4, 5, 7}) {
      EXPECT_EQ(testing::bit_difference(slot(s), old.slice(0, s, s + 1)), "") << i << ", " << s;
    }
  }
}

class RestoreTest : public ForwardMetadataTest {
 protected:
  /// Slot 7 as it is now, as the state after `position` tokens.
  std::vector<std::byte> cold(int64_t position, PackScheme scheme = PackScheme::kExact) const {
    std::vector<std::byte> pack(static_cast<size_t>(*slot_pack_bytes(pool_.spec(), scheme)));
    EXPECT_TRUE(pack_slot(pool_, 7, position, scheme, pack).ok());
    return pack;
  }

  Status restore(const std::vector<Row>& rows, const std::vector<DeferredSlotWork::Restore>& all,
                 DeferredSlotWork pre = {}) {
    pre.restore = all;
    return prepare(rows, std::move(pre));
  }

  void expect_slot(int64_t slot, const std::vector<HostTensor>& source, int64_t source_slot) {
    for (size_t i = 0; i < source.size(); ++i) {
      EXPECT_EQ(testing::bit_difference(pool_.planes()[i].slice(0, slot, slot + 1),
                                        source[i].view().slice(0, source_slot, source_slot + 1)),
                "")
          << "plane " << i;
    }
  }
};

// Clears, copies and restores of one batch, each once, all layers; other slots keep every bit.
TEST_F(RestoreTest, AColdSlotComesBackBeforeTheBatch) {
  const std::vector<std::byte> pack = cold(64);
  const std::vector<HostTensor> warm = pool_copy();
  for (const TensorView& plane : pool_.planes()) testing::fill_normal(plane, 99);
  const std::vector<HostTensor> before = pool_copy();
  ASSERT_TRUE(restore({extend(2, 64, 5), extend(3, 0, 2)}, {{pack, 2, {}}, {pack, 6, {}}},
                      {{2, 4}, {{0, 1}}})
                  .ok());
  expect_slot(2, warm, 7);
  expect_slot(6, warm, 7);
  expect_slot(1, before, 0);
  for (const TensorView& plane : pool_.planes()) {
    EXPECT_EQ(testing::nonzero(plane.slice(0, 4, 5)), "");
  }
  for (const int64_t slot : {0, 3, 5, 7}) expect_slot(slot, before, slot);
}

TEST_F(RestoreTest, IsDoneOnceAndThePackMayGo) {
  {
    const std::vector<std::byte> pack = cold(64);
    ASSERT_TRUE(restore({extend(2, 64, 5)}, {{pack, 2, {}}}).ok());
  }
  for (const TensorView& plane : pool_.planes()) testing::fill_normal(plane, 5);
  const std::vector<HostTensor> before = pool_copy();
  ASSERT_TRUE(prepare({extend(2, 69, 5)}).ok());
  for (int64_t slot = 0; slot < 8; ++slot) expect_slot(slot, before, slot);
}

// A resumed prefill goes on from the restored state as it does from the one that never left.
TEST_F(RestoreTest, LossyPacksAndVirtualSlots) {
  const std::vector<std::byte> pack = cold(64, PackScheme::kInt8);
  ASSERT_TRUE(unpack_slot(pack, pool_, 0).ok());
  const std::vector<HostTensor> want = pool_copy();
  const HostTensor table = testing::i32_tensor({5, 4, 3});
  ForwardBatch batch;
  const std::vector<Row> rows = {extend(2, 64, 1)};
  batch.rows = rows;
  batch.slot_table = table.view();
  batch.pre.restore.push_back({pack, 2, {}});
  ASSERT_TRUE(metadata_.prepare(batch, pool_, {}).ok());
  expect_slot(3, want, 0);
}

TEST_F(RestoreTest, RefusesByIndexAndChangesNothing) {
  ASSERT_TRUE(prepare({decode(3)}).ok());
  const std::vector<std::byte> pack = cold(64);
  std::vector<std::byte> damaged = pack;
  damaged[damaged.size() / 2] ^= std::byte{1};
  PoolSpec other = spec();
  other.layers[0].heads = 4;
  other.layers[0].conv_channels = 96;
  const StatePool stranger = *StatePool::create(other, 1);
  std::vector<std::byte> foreign(static_cast<size_t>(*slot_pack_bytes(other, PackScheme::kExact)));
  for (const TensorView& plane : stranger.planes()) testing::fill_constant(plane, 0.0);
  ASSERT_TRUE(pack_slot(stranger, 0, 64, PackScheme::kExact, foreign).ok());
  const std::vector<HostTensor> before = pool_copy();
  struct Case {
    std::vector<Row> rows;
    std::vector<DeferredSlotWork::Restore> all;
    DeferredSlotWork pre;
    StatusCode code;
    const char* text;
  };
  const StatusCode bad = StatusCode::kInvalidArgument;
  const std::vector<Row> one = {extend(0, 64, 2)};
  Row verify = extend(0, 64, 2);
  verify.kind = RowKind::kVerify;
  const std::vector<Case> cases = {
      {{}, {{pack, 0, {}}}, {}, bad, "pre: expected no slot work in a batch without extend rows"},
      {{decode(0)}, {{pack, 0, {}}}, {}, bad, "0 clears, 0 copies and 1 restores"},
      {{verify}, {{pack, 0, {}}}, {}, bad, "without extend rows"},
      {{pad(2)}, {{pack, 0, {}}}, {}, bad, "without extend rows"},
      {one, {{pack, 8, {}}}, {}, bad, "pre.restore.slot[0]: expected a slot from 0 to 7, got 8"},
      {one, {{pack, 1, {}}, {pack, -1, {}}}, {}, bad, "pre.restore.slot[1]"},
      {one, {{pack, 1, {}}, {pack, 1, {}}}, {}, bad, "pre.restore[1].slot: expected distinct"},
      {one, {{pack, 1, {}}}, {{}, {{2, 1}}}, bad, "pre.restore[0].slot: expected no slot of pre.c"},
      {one, {{pack, 1, {}}}, {{}, {{1, 2}}}, bad, "pre.restore[0].slot: expected no slot of pre.c"},
      {{extend(0, 63, 2)}, {{pack, 0, {}}}, {}, bad, "pre.restore[0]: pack.position: expected 63"},
      {{extend(1, 0, 2), decode(0, 64)}, {{pack, 0, {}}}, {}, bad, "a row of kind decode"},
      {one,
       {{pack, 0, {}}, {damaged, 1, {}}},
       {{2}, {{3, 4}}},
       StatusCode::kDataLoss,
       "pre.restore[1]: slot pack"},
      {one, {{{}, 0, {}}}, {}, StatusCode::kDataLoss, "pre.restore[0]"},
      {one, {{foreign, 0, {}}}, {}, bad, "pre.restore[0]: buffer.layers[0].heads: expected 2"},
  };
  for (const Case& item : cases) {
    const Status status = restore(item.rows, item.all, item.pre);
    EXPECT_EQ(status.code(), item.code) << item.text;
    EXPECT_NE(status.message().find(item.text), std::string::npos) << status.message();
    EXPECT_EQ(values(metadata_.rows().slot), (Ints{3})) << item.text;
    for (int64_t slot = 0; slot < 8; ++slot) expect_slot(slot, before, slot);
  }
}

// A shared prefix: one source for two slots, and its own request goes on in the same batch.
TEST_F(ForwardMetadataTest, OneSlotWithPendingRecordsIsCopiedTwice) {
  PoolSpec with_rings = spec();
  with_rings.replay.length = 4;
  with_rings.replay.slopes = {{}, {0.5f, 0.25f}};
  StatePool pool = *StatePool::create(with_rings, 8);
  for (const TensorView& plane : pool.planes()) testing::fill_normal(plane, 3);
  for (int64_t layer = 0; layer < 2; ++layer) {
    testing::fill_normal(pool.replay_ring(layer).keys, 4);
    testing::fill_normal(pool.replay_ring(layer).values, 5);
  }
  testing::fill_constant(pool.replay_ring(0).gamma, 0.5);
  auto* cursor = static_cast<int32_t*>(pool.replay_cursor().data);
  cursor[0] = 2;
  const HostTensor unfolded = testing::copy_of(pool.recurrent(0).slice(0, 0, 1));
  ForwardBatch batch;
  const std::vector<Row> rows = {extend(0, 9, 2), extend(1, 9, 2), extend(2, 9, 2)};
  batch.rows = rows;
  batch.pre.copy = {{0, 1}, {0, 2}};
  const Status status = metadata_.prepare(batch, pool, {});
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(cursor[0], 0);
  EXPECT_NE(testing::bit_difference(pool.recurrent(0).slice(0, 0, 1), unfolded), "");
  for (const TensorView& plane : pool.planes()) {
    EXPECT_EQ(testing::bit_difference(plane.slice(0, 1, 2), plane.slice(0, 0, 1)), "");
    EXPECT_EQ(testing::bit_difference(plane.slice(0, 2, 3), plane.slice(0, 0, 1)), "");
  }
}

// What the ring of the slot held before belongs to the state that has gone.
TEST_F(RestoreTest, ReplayRingsOfARestoredSlotAreEmpty) {
  PoolSpec with_rings = spec();
  with_rings.replay.length = 4;
  with_rings.replay.slopes = {{}, {0.5f, 0.25f}};
  StatePool pool = *StatePool::create(with_rings, 8);
  for (const TensorView& plane : pool.planes()) testing::fill_normal(plane, 3);
  for (int64_t layer = 0; layer < 2; ++layer) {
    testing::fill_normal(pool.replay_ring(layer).keys, 4);
    testing::fill_normal(pool.replay_ring(layer).values, 5);
  }
  testing::fill_constant(pool.replay_ring(0).gamma, 0.5);
  auto* cursor = static_cast<int32_t*>(pool.replay_cursor().data);
  std::vector<std::byte> pack(static_cast<size_t>(*slot_pack_bytes(spec(), PackScheme::kExact)));
  const HostTensor unfolded = testing::copy_of(pool.recurrent(0).slice(0, 7, 8));
  cursor[7] = 2;
  ASSERT_TRUE(pack_slot(pool, 7, 64, PackScheme::kExact, pack).ok());
  EXPECT_EQ(cursor[7], 0) << "the pack holds the pending records, folded";
  EXPECT_NE(testing::bit_difference(pool.recurrent(0).slice(0, 7, 8), unfolded), "");
  cursor[2] = 3;
  cursor[4] = 1;
  ForwardBatch batch;
  const std::vector<Row> rows = {extend(2, 64, 1)};
  batch.rows = rows;
  batch.pre.restore.push_back({pack, 2, {}});
  ASSERT_TRUE(metadata_.prepare(batch, pool, {}).ok());
  EXPECT_EQ(cursor[2], 0);
  EXPECT_EQ(cursor[4], 1);
  for (const TensorView& plane : pool.planes()) {
    EXPECT_EQ(testing::bit_difference(plane.slice(0, 2, 3), plane.slice(0, 7, 8)), "");
  }
  cursor[5] = 3;
  ASSERT_TRUE(unpack_slot(pack, pool, 5).ok());
  EXPECT_EQ(cursor[5], 0);
}

TEST_F(ForwardMetadataTest, RefusesAPoolWithoutMemory) {
  ASSERT_TRUE(pool_.release_memory().ok());
  EXPECT_EQ(prepare({decode(0)}).code(), StatusCode::kFailedPrecondition);
}

class SlotTableTest : public ForwardMetadataTest {
 protected:
  Status prepare(const std::vector<Row>& rows, const ConstTensorView& table,
                 DeferredSlotWork pre = {}) {
    ForwardBatch batch;
    batch.rows = rows;
    batch.pre = std::move(pre);
    batch.slot_table = table;
    return metadata_.prepare(batch, pool_, {});
  }
};

TEST_F(SlotTableTest, RowsNameVirtualSlots) {
  const HostTensor narrow = testing::i32_tensor({5, 0, 8, -1, 3, INT32_MIN, 7});
  const HostTensor wide =
      testing::i64_tensor({5, 0, int64_t{1} << 32, -1, 3, INT64_MIN, 7});  // 2^32 is not slot 0
  for (const ConstTensorView& table : {narrow.view(), wide.view()}) {
    ASSERT_TRUE(prepare({decode(6), decode(0), decode(2), decode(3), decode(5), decode(7),
                         decode(-1), decode(INT32_MAX), pad(1, 1), extend(1, 0, 3)},
                        table)
                    .ok());
    EXPECT_EQ(values(metadata_.rows().slot), (Ints{7, 5, -1, -1, -1, -1, -1, -1, -1, 0}));
    EXPECT_EQ(values(metadata_.segments()[2].rows.slot), (Ints{0}));
  }
}

TEST_F(SlotTableTest, AStridedTableIsReadAsItLies) {
  const HostTensor pairs = testing::i32_tensor({4, 99, 2, 99, 6, 99});
  ConstTensorView table = pairs.view();
  table.shape[0] = 3;
  table.stride[0] = 2;
  ASSERT_TRUE(prepare({decode(0), decode(1), decode(2)}, table).ok());
  EXPECT_EQ(values(metadata_.rows().slot), (Ints{4, 2, 6}));
}

TEST_F(SlotTableTest, DuplicatesAreThoseOfThePool) {
  const HostTensor table = testing::i32_tensor({3, 3, -1, -1});
  const Status status = prepare({decode(0), decode(1)}, table);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("slot_table[rows.slot]"), std::string::npos) << status.message();
  EXPECT_TRUE(prepare({decode(0), decode(2), decode(3)}, table).ok()) << "padding may repeat";
}

TEST_F(SlotTableTest, DeferredWorkNamesVirtualSlots) {
  const std::vector<HostTensor> before = pool_copy();
  const HostTensor table = testing::i32_tensor({7, 6, 5, 4, -1, 7});
  ASSERT_TRUE(prepare({extend(0, 0, 3)}, table, {{1}, {{2, 3}}}).ok());
  for (size_t i = 0; i < before.size(); ++i) {
    const TensorView plane = pool_.planes()[i];
    const ConstTensorView old = before[i];
    EXPECT_EQ(testing::nonzero(plane.slice(0, 6, 7)), "") << i;
    EXPECT_EQ(testing::bit_difference(plane.slice(0, 4, 5), old.slice(0, 5, 6)), "") << i;
    for (int64_t s : {0, 1, 2, 3, 5, 7}) {
      EXPECT_EQ(testing::bit_difference(plane.slice(0, s, s + 1), old.slice(0, s, s + 1)), "");
    }
  }
}

TEST_F(SlotTableTest, RefusesByNameAndChangesNothing) {
  ASSERT_TRUE(prepare({decode(3)}, {}).ok());
  const std::vector<HostTensor> before = pool_copy();
  const HostTensor table = testing::i32_tensor({7, 6, 5, 4, -1, 7});
  const HostTensor floats = testing::f32_tensor({1, 2});
  const HostTensor matrix(DType::kI32, {2, 2});
  const std::vector<Row> one = {extend(0, 0, 2)};
  struct Case {
    ConstTensorView table;
    DeferredSlotWork pre;
    const char* text;
  };
  ConstTensorView elsewhere = table;
  elsewhere.device = {DeviceType::kCuda, 0};
  std::vector<Case> cases;
  cases.push_back({floats, {}, "slot_table"});
  cases.push_back({matrix, {}, "slot_table"});
  cases.push_back({elsewhere, {}, "slot_table"});
  cases.push_back({table, {{4}, {}}, "pre.clear[0]: expected a slot from 0 to 7, got 4, which"});
  cases.push_back({table, {{6}, {}}, "pre.clear[0]"});
  cases.push_back({table, {{}, {{0, 6}}}, "pre.copy.dst[0]"});
  cases.push_back({table, {{}, {{1, 0}, {2, 5}}}, "pre.copy.dst: expected distinct slots, got 7"});
  cases.push_back({table, {{}, {{0, 5}}}, "no slot as both src and dst, got 7"});
  for (const Case& item : cases) {
    const Status status = prepare(one, item.table, item.pre);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << item.text;
    EXPECT_NE(status.message().find(item.text), std::string::npos) << status.message();
    EXPECT_EQ(values(metadata_.rows().slot), (Ints{3})) << item.text;
  }
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(testing::bit_difference(pool_.planes()[i], before[i]), "");
  }
}

}  // namespace
}  // namespace linestate
