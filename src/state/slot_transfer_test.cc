#include "linestate/state/slot_transfer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate {
namespace {

using testing::HostTensor;
using Descriptors = std::vector<TransferDescriptor>;

ModelConfig model() {
  ModelConfig model;
  model.num_layers = 3;
  LayerSpec kda;
  kda.layer_id = 0;
  kda.heads = {4, 8, 32, 16};  // H, HV, K, V
  LayerSpec lightning;
  lightning.kind = LayerKind::kLightning;
  lightning.layer_id = 2;
  lightning.heads = {8, 8, 16, 16};
  lightning.norm_groups = 1;
  model.linear_layers = {kda, lightning};
  return model;
}

StatePool rank_pool(const TpShard& shard, int64_t slots, uint64_t seed) {
  const Result<ModelConfig> part = shard_model(model(), shard);
  EXPECT_TRUE(part.ok()) << part.status().to_string();
  Result<StatePool> pool =
      StatePool::create(make_pool_spec(*part, DType::kF32, DType::kBF16), slots);
  EXPECT_TRUE(pool.ok());
  for (const TensorView& plane : pool->planes()) testing::fill_normal(plane, seed++);
  return *std::move(pool);
}

Descriptors descriptors(const StatePool& pool) {
  Result<Descriptors> made = transfer_descriptors(pool);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return *std::move(made);
}

char* head_at(const TransferDescriptor& plane, int64_t slot, int64_t head) {
  return static_cast<char*>(plane.base) + slot * plane.slot_stride_bytes +
         head * plane.head_stride_bytes;
}

// What a transfer engine does, with nothing but descriptors: `from` and `to` are the ranks' shards
// of the same model.
void send(const Descriptors& from, const TpShard& source, int64_t source_slot,
          const Descriptors& to, const TpShard& target, int64_t target_slot) {
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    const TransferDescriptor& a = from[i];
    const TransferDescriptor& b = to[i];
    ASSERT_TRUE(check_transferable(a, b).ok());
    const int64_t all_heads = a.heads * source.size;
    ASSERT_EQ(all_heads, b.heads * target.size);
    const HeadRange has = *source.heads(all_heads);
    const HeadRange wants = *target.heads(all_heads);
    for (int64_t head = std::max(has.begin, wants.begin); head < std::min(has.end, wants.end);
         ++head) {
      for (int64_t run = 0; run < a.runs_per_head; ++run) {
        std::memcpy(head_at(b, target_slot, head - wants.begin) + run * b.run_stride_bytes,
                    head_at(a, source_slot, head - has.begin) + run * a.run_stride_bytes,
                    static_cast<size_t>(a.run_bytes));
      }
    }
  }
}

// The rank's part of a plane of the whole model, by views: heads of the recurrent state, and the
// channels q | k | v of its heads.
void expect_shard(const StatePool& whole, int64_t whole_slot, const StatePool& part,
                  const TpShard& shard, int64_t part_slot) {
  for (int64_t layer = 0; layer < whole.num_layers(); ++layer) {
    auto same = [&](const ConstTensorView& a, const ConstTensorView& b, const char* what) {
      EXPECT_EQ(testing::bit_difference(a.slice(0, part_slot, part_slot + 1),
                                        b.slice(0, whole_slot, whole_slot + 1)),
                "")
          << what << " of layer " << layer << ", rank " << shard.rank << " of " << shard.size;
    };
    const HeadRange value_heads = *shard.heads(8);
    same(part.recurrent(layer), whole.recurrent(layer).slice(1, value_heads.begin, value_heads.end),
         "recurrent");
    if (layer != 0) continue;
    const HeadRange key_heads = *shard.heads(4);
    const int64_t k = 32;
    const int64_t v = 16;
    const ConstTensorView wide = whole.conv_window(0);
    const ConstTensorView narrow = part.conv_window(0);
    const int64_t keys = key_heads.size() * k;
    same(narrow.slice(1, 0, keys), wide.slice(1, key_heads.begin * k, key_heads.end * k), "q");
    same(narrow.slice(1, keys, 2 * keys),
         wide.slice(1, (4 + key_heads.begin) * k, (4 + key_heads.end) * k), "k");
    same(narrow.slice(1, 2 * keys, 2 * keys + value_heads.size() * v),
         wide.slice(1, 8 * k + value_heads.begin * v, 8 * k + value_heads.end * v), "v");
  }
}

TEST(SlotTransfer, OneRankToManyAndBack) {
  const StatePool whole = rank_pool({0, 1}, 3, 1);
  for (int32_t size : {1, 2, 4}) {
    const StatePool back = rank_pool({0, 1}, 2, 100);
    for (int32_t rank = 0; rank < size; ++rank) {
      const TpShard shard{rank, size};
      const StatePool part = rank_pool(shard, 5, 200);
      const HostTensor before = testing::copy_of(part.recurrent(0));
      send(descriptors(whole), {0, 1}, 2, descriptors(part), shard, 4);
      expect_shard(whole, 2, part, shard, 4);
      EXPECT_EQ(testing::bit_difference(part.recurrent(0).slice(0, 0, 4),
                                        ConstTensorView(before).slice(0, 0, 4)),
                "");
      send(descriptors(part), shard, 4, descriptors(back), {0, 1}, 0);
    }
    expect_shard(whole, 2, back, {0, 1}, 0);
  }
}

TEST(SlotTransfer, BetweenTwoTensorParallelSizes) {
  const StatePool whole = rank_pool({0, 1}, 1, 1);
  std::vector<StatePool> two;
  for (int32_t rank : {0, 1}) {
    two.push_back(rank_pool({rank, 2}, 2, 50));
    send(descriptors(whole), {0, 1}, 0, descriptors(two.back()), {rank, 2}, 1);
  }
  for (int32_t rank : {0, 1, 2, 3}) {
    const StatePool four = rank_pool({rank, 4}, 3, 90);
    for (int32_t source : {0, 1}) {
      send(descriptors(two[static_cast<size_t>(source)]), {source, 2}, 1, descriptors(four),
           {rank, 4}, 2);
    }
    expect_shard(whole, 0, four, {rank, 4}, 2);
  }
}

// Every byte of every slot belongs to exactly one run.
TEST(SlotTransfer, RunsCoverTheSlotsOnce) {
  const StatePool pool = rank_pool({1, 2}, 3, 1);
  std::set<const char*> seen;
  int64_t slot_bytes = 0;
  for (const TransferDescriptor& plane : descriptors(pool)) {
    EXPECT_EQ(plane.num_slots, 3);
    EXPECT_EQ(plane.bytes_per_head, plane.runs_per_head * plane.run_bytes);
    EXPECT_EQ(plane.bytes_per_slot, plane.heads * plane.bytes_per_head);
    slot_bytes += plane.bytes_per_slot;
    for (int64_t slot = 0; slot < 3; ++slot) {
      for (int64_t head = 0; head < plane.heads; ++head) {
        for (int64_t run = 0; run < plane.runs_per_head; ++run) {
          const char* at = head_at(plane, slot, head) + run * plane.run_stride_bytes;
          for (int64_t byte = 0; byte < plane.run_bytes; ++byte) {
            ASSERT_TRUE(seen.insert(at + byte).second) << transfer_part_name(plane.part);
          }
        }
      }
    }
  }
  EXPECT_EQ(slot_bytes, bytes_per_slot(pool.spec()));
  EXPECT_EQ(static_cast<int64_t>(seen.size()), 3 * slot_bytes);
  for (const TensorView& plane : pool.planes()) {
    testing::for_each_offset(plane, [&](int64_t offset) {
      const char* first = static_cast<const char*>(plane.data) + offset * dtype_bytes(plane.dtype);
      ASSERT_TRUE(seen.count(first) == 1) << describe(plane);
    });
  }
}

TEST(SlotTransfer, FieldsOfACreatedPool) {
  const StatePool pool = rank_pool({0, 1}, 2, 1);
  const Descriptors all = descriptors(pool);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0].part, TransferPart::kRecurrent);
  EXPECT_EQ(all[0].heads, 8);
  EXPECT_EQ(all[0].bytes_per_head, 32 * 16 * 4);
  EXPECT_EQ(all[0].layout, StateLayout::kVK);
  EXPECT_TRUE(all[0].slot_contiguous());
  EXPECT_EQ(all[1].part, TransferPart::kConvQ);
  EXPECT_EQ(all[1].heads, 4);
  EXPECT_EQ(all[1].dtype, DType::kBF16);
  EXPECT_EQ(all[1].order, TransferOrder::kFirstFastest) << "created windows are tap-major";
  EXPECT_EQ(all[1].runs_per_head, 3);
  EXPECT_EQ(all[1].run_bytes, 32 * 2);
  EXPECT_FALSE(all[1].slot_contiguous());
  EXPECT_EQ(all[3].part, TransferPart::kConvV);
  EXPECT_EQ(all[3].heads, 8);
  EXPECT_EQ(all[4].layer_id, 2);
  EXPECT_EQ(all[4].layout, StateLayout::kKV);
}

// Channel-major windows, as some engines have them: a head is one run.
TEST(SlotTransfer, AdoptedPools) {
  PoolSpec spec = make_pool_spec(model(), DType::kF32, DType::kBF16);
  spec.layers.pop_back();
  const int64_t channels = 2 * 4 * 32 + 8 * 16;
  HostTensor recurrent(DType::kF32, {2, 8, 16, 40});
  HostTensor window(DType::kBF16, {2, channels, 3});
  std::vector<AdoptedLayer> layers(1);
  layers[0].recurrent = recurrent.view().slice(3, 0, 32);  // rows of 32 in 40
  layers[0].conv_window = window.view();
  Result<StatePool> pool = StatePool::adopt(spec, layers);
  ASSERT_TRUE(pool.ok()) << pool.status().to_string();
  const Descriptors all = descriptors(*pool);
  EXPECT_EQ(all[0].runs_per_head, 16);
  EXPECT_EQ(all[0].run_bytes, 32 * 4);
  EXPECT_EQ(all[0].run_stride_bytes, 40 * 4);
  EXPECT_EQ(all[2].order, TransferOrder::kLastFastest);
  EXPECT_EQ(all[2].runs_per_head, 1);
  EXPECT_EQ(all[2].base, static_cast<char*>(window.data()) + 4 * 32 * 3 * 2);
  EXPECT_TRUE(all[2].slot_contiguous());

  const Descriptors created = descriptors(rank_pool({0, 1}, 2, 1));
  EXPECT_NE(check_transferable(all[1], created[1]).message().find("b.order: expected"),
            std::string::npos);
  EXPECT_NE(check_transferable(all[0], created[0]).message().find("b.run_bytes: expected"),
            std::string::npos);
  EXPECT_NE(check_transferable(all[1], all[2]).message().find("b.part"), std::string::npos);

  HostTensor sparse(DType::kF32, {2, 8, 32, 64});
  layers[0].recurrent = sparse.view();
  layers[0].recurrent.shape = {2, 8, 16, 32};
  layers[0].recurrent.stride[2] *= 2;
  layers[0].recurrent.stride[3] = 2;
  pool = StatePool::adopt(spec, layers);
  ASSERT_TRUE(pool.ok()) << pool.status().to_string();
  const Status status = transfer_descriptors(*pool).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("layer 0, recurrent: expected one contiguous"), std::string::npos)
      << status.message();
}

TEST(SlotTransfer, RefusesByName) {
  StatePool pool = rank_pool({0, 1}, 1, 1);
  ASSERT_TRUE(pool.release_memory().ok());
  EXPECT_EQ(transfer_descriptors(pool).status().code(), StatusCode::kFailedPrecondition);
  PoolSpec spec;
  for (int64_t channels : {33, 32, 48, 64 + 33}) {
    spec.layers = {{7, StateLayout::kVK, 2, 16, 16, channels, 3}};
    const Result<StatePool> odd = StatePool::create(spec, 1);
    ASSERT_TRUE(odd.ok());
    const Status status = transfer_descriptors(*odd).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("layer 7: expected conv_channels"), std::string::npos);
  }
}

}  // namespace
}  // namespace linestate
