#include "cli/replay/prefix_store.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace linestate::cli {
namespace {

const std::vector<TraceRequest>& trace() {
  static const std::vector<TraceRequest> requests{
      {0, 1200, 1, {1, 2, 3}}, {0, 1100, 1, {1, 2, 4}}, {0, 600, 1, {9, 8}}, {0, 512, 1, {1}}};
  return requests;
}

class PrefixStoreTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRequestSlots = 2;
  void start(int64_t cache_slots) {
    pool_.emplace(
        StatePool::create(make_pool_spec(model_preset("tiny").value(), DType::kF32, DType::kBF16),
                          kRequestSlots + cache_slots)
            .value());
    metadata_.emplace(ForwardMetadata::create(ForwardCapacity{4, 0, 4}).value());
    store_.emplace(PrefixStore::create(*pool_, cache_slots).value());
  }
  int64_t admit(int64_t request) {
    return store_->admit(trace()[static_cast<size_t>(request)], request);
  }
  // One extend row in a slot of its own; what the batch was asked to do.
  ForwardBatch run(int64_t request, int64_t begin, int64_t end) {
    const int32_t slot = pool_->allocate().value();
    const StepPlan plan{{}, {{request, begin, end - begin}}, {}, {}};
    const BuiltBatch batch = build_batch(plan, 0, trace(), [&](int64_t) { return slot; });
    ForwardBatch forward;
    forward.rows = batch.rows;
    EXPECT_TRUE(store_->add_work(batch, forward).ok());
    const Status prepared = metadata_->prepare(forward, *pool_, ExecContext());
    EXPECT_TRUE(prepared.ok()) << prepared.to_string();
    store_->prepared();
    EXPECT_TRUE(store_->collect(batch, *metadata_).ok());
    EXPECT_TRUE(pool_->free(slot).ok());
    taken_.assign(forward.snapshots.begin(), forward.snapshots.end());
    forward.rows = {};
    forward.snapshots = {};
    return forward;
  }

  std::optional<StatePool> pool_;
  std::optional<ForwardMetadata> metadata_;
  std::optional<PrefixStore> store_;
  std::vector<SnapshotRequest> taken_;
};

TEST_F(PrefixStoreTest, SharedBlocksAreCopiedNotComputed) {
  start(4);
  EXPECT_EQ(admit(0), 0);
  EXPECT_TRUE(run(0, 0, 700).pre.empty());
  ASSERT_EQ(taken_.size(), 1u);
  EXPECT_EQ(taken_[0].position, 512);
  EXPECT_TRUE(run(0, 700, 1200).pre.empty());
  ASSERT_EQ(taken_.size(), 1u);
  EXPECT_EQ(taken_[0].position, 1024);
  const int32_t source = taken_[0].slot;

  EXPECT_EQ(admit(1), 1024);
  const ForwardBatch forward = run(1, 1024, 1100);
  ASSERT_EQ(forward.pre.copy.size(), 1u);
  EXPECT_EQ(forward.pre.copy[0].src, source);
  EXPECT_TRUE(taken_.empty()) << "no border behind 1024";
  EXPECT_EQ(store_->stats().leased, 0);
  EXPECT_EQ(admit(2), 0) << "other blocks";
  EXPECT_EQ(admit(3), 0) << "one token must be left to compute";
  EXPECT_EQ(store_->stats().hit_tokens, 1024);
}

TEST_F(PrefixStoreTest, EvictsWithinItsOwnSlots) {
  start(1);
  EXPECT_EQ(admit(0), 0);
  run(0, 0, 1200);
  EXPECT_EQ(admit(2), 0);
  run(2, 0, 600);
  EXPECT_EQ(store_->stats().evicted, 1);
  EXPECT_EQ(store_->stats().entries, 1);
  EXPECT_EQ(pool_->free_slots(), kRequestSlots);
  EXPECT_EQ(admit(1), 0) << "evicted";
}

TEST_F(PrefixStoreTest, AHeldSnapshotIsNotEvicted) {
  start(1);
  EXPECT_EQ(admit(0), 0);
  run(0, 0, 1200);
  EXPECT_EQ(admit(1), 1024);  // held until its first row
  EXPECT_EQ(admit(2), 0);
  run(2, 0, 600);
  EXPECT_TRUE(taken_.empty()) << "no slot to take one into";
  EXPECT_EQ(run(1, 1024, 1100).pre.copy.size(), 1u);
  EXPECT_EQ(pool_->free_slots(), kRequestSlots);
}

}  // namespace
}  // namespace linestate::cli
