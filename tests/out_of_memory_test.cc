// Every creating and growing function of the C++ interface with every one of its allocations
// failing: a Status, nothing half done, nothing lost, and the object goes on working.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "linestate/linestate.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"
#include "tests/failing_memory_case.h"

namespace linestate {
namespace {

using testing::fail_everywhere;
using testing::Failure;
using testing::HostTensor;
using testing::without_memory;

class OutOfMemory : public ::testing::TestWithParam<Failure> {
 protected:
  // The OpenMP runtime sets itself up at first use, and clang's hangs when it has no memory then.
  static void SetUpTestSuite() { EXPECT_GE(list_devices()[0].threads, 1); }

  int64_t fail(const std::function<Status()>& attempt,
               const std::function<void()>& unchanged = {}) {
    return fail_everywhere(GetParam(), attempt, unchanged);
  }
  /// A function that makes a value: no block stays behind when it fails.
  template <typename Make>
  int64_t fail_create(const Make& make) {
    const int64_t live = testing::g_live;
    const auto attempt = [&] {
      auto made = make();
      return made.ok() ? Status() : made.status();
    };
    const int64_t failures =
        fail(attempt, [&] { EXPECT_EQ(testing::g_live, live) << "a block was lost"; });
    EXPECT_GT(failures, 0) << "nothing was allocated";
    return failures;
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, OutOfMemory,
                         ::testing::Values(Failure::kOnce, Failure::kFromThenOn));

PoolSpec ring_spec() {
  PoolSpec spec;
  spec.layers.push_back({0, StateLayout::kVK, 2, 16, 16, 96, 3});
  spec.layers.push_back({3, StateLayout::kKV, 2, 16, 16, 0, 0});
  spec.window_dtype = DType::kF32;
  spec.replay.length = 4;
  spec.replay.slopes = {{}, {0.5f, 0.25f}};
  return spec;
}

StatePool filled_pool(int64_t slots) {
  StatePool pool = *StatePool::create(ring_spec(), slots);
  uint64_t seed = 1;
  for (const TensorView& plane : pool.planes()) testing::fill_normal(plane, seed++);
  for (int64_t layer = 0; layer < pool.num_layers(); ++layer) {
    const ReplayRing& ring = pool.replay_ring(layer);
    testing::fill_normal(ring.keys, seed++);
    testing::fill_normal(ring.values, seed++);
    if (ring.gamma.defined()) testing::fill_uniform(ring.gamma, seed++, 0.5, 1.0);
  }
  return pool;
}

/// Everything a pool holds, to compare bit for bit.
struct PoolBits {
  std::vector<HostTensor> planes;
  HostTensor cursor;

  explicit PoolBits(const StatePool& pool) : cursor(testing::copy_of(pool.replay_cursor())) {
    for (const TensorView& plane : pool.planes()) planes.push_back(testing::copy_of(plane));
  }
  void expect_equal(const StatePool& pool) const {
    for (size_t i = 0; i < planes.size(); ++i) {
      EXPECT_EQ(testing::bit_difference(pool.planes()[i], planes[i]), "") << "plane " << i;
    }
    EXPECT_EQ(testing::bit_difference(pool.replay_cursor(), cursor), "");
  }
};

TEST_P(OutOfMemory, Models) {
  fail_create([] { return model_preset("kimi-linear"); });
  const ModelConfig model = *model_preset("tiny");
  fail_create([&] { return shard_model(model, {1, 2}); });
  fail_create([&] { return limit_layers(model, 2); });
  fail_create([] { return lightning_slopes(12, 3, 8); });
  fail_create([&] { return KdaBackend::create(model); });
  fail_create([&] { return LightningBackend::create(model); });
  fail_create([&] { return VerifyRecords::create(model, DType::kBF16, 16); });
  StatePool pool = *StatePool::create(make_pool_spec(model, DType::kF32, DType::kBF16), 2);
  fail_create([&] { return transfer_descriptors(pool); });
  const KdaBackend kda = *KdaBackend::create(model);
  fail_create([&] { return kda.workspace_bytes(64, pool, {}); });
}

TEST_P(OutOfMemory, PoolsAreMadeWholeOrNotAtAll) {
  const PoolSpec spec = ring_spec();
  fail_create([&] { return StatePool::create(spec, 8); });
  HostTensor kda(DType::kF32, {3, 2, 16, 16}), window(DType::kF32, {3, 96, 3});
  HostTensor lightning(DType::kF32, {3, 2, 16, 16});
  const std::vector<AdoptedLayer> layers = {{kda.view(), window.view()}, {lightning.view(), {}}};
  fail_create([&] { return StatePool::adopt(spec, layers); });
}

TEST_P(OutOfMemory, SlotsAreNeitherLostNorHandedOutTwice) {
  StatePool pool = *StatePool::create(ring_spec(), 9);
  for (int32_t want = 0; want < 9; ++want) {
    int32_t slot = -1;
    fail(
        [&] {
          const Result<int32_t> got = pool.allocate();
          if (got.ok()) slot = *got;
          return got.ok() ? Status() : got.status();
        },
        [&] {
          EXPECT_EQ(pool.free_slots(), 9 - want);
          EXPECT_FALSE(pool.allocated(want));
        });
    EXPECT_EQ(slot, want);
  }
  bool done = false;
  const SlotEvent event{[](void* handle) { return *static_cast<bool*>(handle); }, &done};
  int64_t waiting = -1, back = -1;
  without_memory([&] {  // what allocate() handed out needs no memory to come back
    for (int32_t slot = 0; slot < 9; ++slot) {
      if (!(slot % 2 == 0 ? pool.free(slot) : pool.retire(slot, event)).ok()) return;
    }
    waiting = pool.in_flight_slots();
    done = true;
    back = pool.free_slots();
  });
  EXPECT_EQ(waiting, 4);
  EXPECT_EQ(back, 9);
  for (int32_t want = 0; want < 9; ++want) EXPECT_EQ(*pool.allocate(), want);
}

TEST_P(OutOfMemory, MarksOfSnapshots) {
  StatePool pool = *StatePool::create(ring_spec(), 40);
  for (int32_t i = 0; i < 40; ++i) EXPECT_TRUE(pool.allocate().ok());
  ASSERT_TRUE(pool.mark_snapshot(1, 64).ok());
  EXPECT_GT(fail([&] { return pool.mark_snapshot(39, 128); },
                 [&] {
                   EXPECT_EQ(*pool.snapshot_position(1), 64);
                   EXPECT_FALSE(pool.snapshot_position(39).ok());
                 }),
            0);
  EXPECT_EQ(*pool.snapshot_position(39), 128);
}

TEST_P(OutOfMemory, MemoryIsReleasedAndBoundAgainWhole) {
  StatePool pool = filled_pool(3);
  const PoolBits before(pool);
  fail([&] { return pool.release_memory(); },
       [&] {
         EXPECT_TRUE(pool.memory_bound());
         before.expect_equal(pool);
       });
  EXPECT_FALSE(pool.memory_bound());
  EXPECT_GT(fail([&] { return pool.rebind_memory(); },
                 [&] { EXPECT_FALSE(pool.memory_bound() || pool.has_replay()); }),
            0);
  EXPECT_TRUE(pool.has_replay());
  for (const TensorView& plane : pool.planes()) testing::fill_normal(plane, 5);
  const int32_t slot = 2;
  EXPECT_TRUE(pool.fold(ConstTensorView(&slot, DType::kI32, {1}), {}).ok());
}

TEST_P(OutOfMemory, ABatchIsPreparedWholeOrNotAtAll) {
  fail_create([] { return ForwardMetadata::create(ForwardCapacity{8, 16, 4}); });
  StatePool pool = filled_pool(8);
  std::vector<std::byte> cold(static_cast<size_t>(*slot_pack_bytes(pool.spec(), PackScheme::kF16)));
  ASSERT_TRUE(pack_slot(pool, 7, 64, PackScheme::kF16, cold).ok());
  auto* cursor = static_cast<int32_t*>(pool.replay_cursor().data);
  cursor[2] = 2;                          // pending records of a copied slot,
  cursor[0] = cursor[1] = cursor[3] = 1;  // and of slots whose state is replaced
  ForwardMetadata metadata = *ForwardMetadata::create(ForwardCapacity{8, 16, 4});
  const std::vector<Row> first = {{5, RowKind::kDecode, 9, 1}};
  ForwardBatch batch;
  batch.rows = first;
  ASSERT_TRUE(metadata.prepare(batch, pool, {}).ok());

  const std::vector<Row> rows = {
      {0, RowKind::kExtend, 64, 5}, {3, RowKind::kExtend, 9, 2}, {5, RowKind::kDecode, 10, 1}};
  const std::vector<SnapshotRequest> snapshots = {{0, 66, 6}};
  batch.rows = rows;
  batch.snapshots = snapshots;
  batch.pre.clear = {1};
  batch.pre.copy = {{2, 3}};
  batch.pre.restore.push_back({cold, 0, {}});
  const PoolBits before(pool);
  const int64_t failures = fail([&] { return metadata.prepare(batch, pool, {}); },
                                [&] {
                                  before.expect_equal(pool);
                                  EXPECT_EQ(metadata.num_rows(), 1);
                                  EXPECT_EQ(metadata.segments().size(), 1u);
                                });
  EXPECT_GT(failures, 5);
  EXPECT_EQ(metadata.num_rows(), 3);
  const TensorView state = pool.recurrent(0);
  EXPECT_EQ(testing::nonzero(state.slice(0, 1, 2)), "");
  EXPECT_EQ(testing::bit_difference(state.slice(0, 3, 4), state.slice(0, 2, 3)), "");
  EXPECT_NE(testing::bit_difference(state.slice(0, 0, 1), before.planes[0].view().slice(0, 0, 1)),
            "");
}

TEST_P(OutOfMemory, SlotPacks) {
  StatePool pool = filled_pool(2);
  const PoolSpec& spec = pool.spec();
  EXPECT_GT(fail_create([&] { return slot_pack_bytes(spec, PackScheme::kInt8); }), 0);
  std::vector<std::byte> cold(static_cast<size_t>(*slot_pack_bytes(spec, PackScheme::kExact)));
  fail_create([&] { return pack_slot(pool, 0, 64, PackScheme::kExact, cold); });
  fail_create([&] { return read_slot_pack(cold); });
  const PoolBits before(pool);
  EXPECT_GT(fail(
                [&] {
                  const Result<int64_t> position = unpack_slot(cold, pool, 1);
                  return position.ok() ? Status() : position.status();
                },
                [&] { before.expect_equal(pool); }),
            0);
  const TensorView state = pool.recurrent(1);
  EXPECT_EQ(testing::bit_difference(state.slice(0, 1, 2), state.slice(0, 0, 1)), "");
}

TEST_P(OutOfMemory, Kernels) {
  ExternalKernel<RmsSumSqParams> kernel;
  kernel.name = "a_kernel_of_this_test_with_a_long_name";
  kernel.summary = "what keeps a string off its small buffer";
  kernel.run = [](const RmsSumSqParams&, const ExecContext&, void*) { return Status(); };
  const auto listed = [&] {
    const std::vector<KernelInfo> infos = list_kernels();
    return std::count_if(infos.begin(), infos.end(),
                         [&](const KernelInfo& info) { return info.kernel == kernel.name; });
  };
  EXPECT_GT(
      fail([&] { return register_kernel("rms_sum_sq", kernel); }, [&] { EXPECT_EQ(listed(), 0); }),
      0);
  EXPECT_EQ(listed(), 1);
  ExternalKernel<RmsSumSqParams> other = kernel;
  other.name = "another";
  ASSERT_TRUE(register_kernel("rms_sum_sq", other).ok());
  fail([&] { return unregister_kernel("rms_sum_sq", kernel.name); },
       [&] { EXPECT_EQ(listed(), 1); });
  EXPECT_EQ(listed(), 0);
  EXPECT_TRUE(unregister_kernel("rms_sum_sq", "another").ok());
}

// An operator allocates nothing but the text of an error.
TEST_P(OutOfMemory, OperatorsWithoutMemoryForTheirMessage) {
  HostTensor x(DType::kF32, {2, 8}), sum(DType::kF32, {3, 1});
  const RmsSumSqParams wrong{x.view(), sum.view()};
  Status refused, unknown;
  without_memory([&] {
    refused = rms_sum_sq(wrong, {});
    unknown = rms_sum_sq({x.view(), sum.view()}, {}, "no kernel has this name, however long");
  });
  EXPECT_FALSE(refused.ok());
  EXPECT_FALSE(unknown.ok());
}

/// A cache and its twin, which never lacks memory.
class CachePair {
 public:
  explicit CachePair(int64_t snapshots)
      : cache(*PrefixCache::create({64, snapshots * 10, 10})),
        twin(*PrefixCache::create({64, snapshots * 10, 10})) {}

  // Four conversations that share 0 to 3 blocks with each other, of up to five blocks.
  static std::vector<int64_t> tokens(int64_t name) {
    std::vector<int64_t> made;
    for (int64_t block = 0; block < 5; ++block) {
      const int64_t id = block < name % 4 ? 7 : 100 * name + block;
      for (int64_t i = 0; i < 64; ++i) made.push_back(id * 64 + i);
    }
    return made;
  }

  void expect_equal() {
    const PrefixCacheStats a = cache.stats(), b = twin.stats();
    EXPECT_EQ(a.entries, b.entries);
    EXPECT_EQ(a.inserted, b.inserted);
    EXPECT_EQ(a.evicted, b.evicted);
    EXPECT_EQ(a.duplicates, b.duplicates);
    EXPECT_EQ(a.rejected, b.rejected);
    EXPECT_EQ(a.leased, b.leased);
    for (int64_t name = 0; name < 8; ++name) {
      for (int64_t position = 64; position <= 320; position += 64) {
        EXPECT_EQ(cache.contains(tokens(name), position), twin.contains(tokens(name), position))
            << name << " at " << position;
      }
    }
  }

  PrefixCache cache, twin;
};

TEST_P(OutOfMemory, PrefixCache) {
  fail_create([] { return PrefixCache::create({64, 100, 10}); });
  CachePair pair(6);
  int32_t slot = 0;
  int64_t failures = 0;
  for (const int64_t position : {192, 64, 320, 128, 256, 64, 320}) {
    for (int64_t name = 0; name < 8; ++name, ++slot) {
      const std::vector<int64_t> tokens = CachePair::tokens(name);
      PrefixCache::Inserted got;
      failures += fail(
          [&] {
            Result<PrefixCache::Inserted> made = pair.cache.insert(tokens, position, slot);
            if (made.ok()) got = *std::move(made);
            return made.ok() ? Status() : made.status();
          },
          [&] { pair.expect_equal(); });
      const PrefixCache::Inserted want = *pair.twin.insert(tokens, position, slot);
      EXPECT_EQ(got.outcome, want.outcome);
      EXPECT_EQ(got.freed, want.freed) << "slots in the order in which they left";
      pair.expect_equal();
      ASSERT_FALSE(HasFailure()) << name << " at " << position;
    }
  }
  EXPECT_GT(failures, 100);
  std::vector<int64_t> tokens = CachePair::tokens(7);
  tokens.push_back(1);
  PrefixCache::Lease lease;
  without_memory([&] { lease = pair.cache.match(tokens); });
  PrefixCache::Lease other = pair.twin.match(tokens);
  EXPECT_TRUE(lease.held());
  EXPECT_EQ(lease.slot(), other.slot());
  Result<int32_t> taken = Status(StatusCode::kInternal, "");
  without_memory([&] { taken = pair.cache.take(lease); });
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(*taken, *pair.twin.take(other));
  pair.expect_equal();
  std::vector<int32_t> none = {1};
  without_memory([&] { none = pair.cache.evict(2); });
  EXPECT_TRUE(none.empty());
  pair.expect_equal();
  EXPECT_EQ(pair.cache.evict(2), pair.twin.evict(2));
  std::vector<int32_t> cleared;
  EXPECT_GT(fail(
                [&] {
                  Result<std::vector<int32_t>> made = pair.cache.clear();
                  if (made.ok()) cleared = *std::move(made);
                  return made.ok() ? Status() : made.status();
                },
                [&] { pair.expect_equal(); }),
            0);
  EXPECT_EQ(cleared, *pair.twin.clear());
}

}  // namespace
}  // namespace linestate
