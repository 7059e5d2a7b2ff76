// The C interface with every one of its allocations failing: LS_RESOURCE_EXHAUSTED with a text, a
// null handle, nothing half done, and everything goes on working.
#include <cstring>
#include <string>
#include <vector>

#include "linestate/c_api.h"
#include "tests/failing_memory_case.h"

namespace linestate {
namespace {

using testing::fail_everywhere;
using testing::Failure;
using testing::without_memory;

class COutOfMemory : public ::testing::TestWithParam<Failure> {
 protected:
  // The OpenMP runtime sets itself up at first use, and clang's hangs when it has no memory then.
  static void SetUpTestSuite() { EXPECT_EQ(ls_list_devices(nullptr, 0, nullptr), LS_OK); }

  int64_t fail(const std::function<ls_status()>& call,
               const std::function<void()>& unchanged = {}) {
    // The text is made here, behind the call: a Status of it would be one more allocation.
    return fail_everywhere(
        GetParam(),
        [&] {
          const ls_status status = call();
          return status == LS_OK ? Status() : Status(static_cast<StatusCode>(status), "failed");
        },
        [&] {
          EXPECT_STRNE(ls_last_error(), "");
          if (unchanged) unchanged();
        });
  }
  /// A create function: the handle is null when it fails, and no block stays behind.
  template <typename Handle>
  void fail_create(const std::function<ls_status(Handle**)>& create, void (*destroy)(Handle*)) {
    Handle* handle = nullptr;
    int64_t live = -1;  // blocks after the first failure
    const int64_t failures = fail([&] { return create(&handle); },
                                  [&] {
                                    EXPECT_EQ(handle, nullptr);
                                    if (live < 0) live = testing::g_live;
                                    // One more for the text of ls_last_error.
                                    EXPECT_LE(testing::g_live, live + 1) << "a block was lost";
                                  });
    EXPECT_GT(failures, 0);
    EXPECT_NE(handle, nullptr);
    destroy(handle);
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, COutOfMemory,
                         ::testing::Values(Failure::kOnce, Failure::kFromThenOn));

template <typename T>
T init() {
  T value;
  LS_INIT(&value);
  return value;
}

struct Fixture {
  ls_model* model = nullptr;
  ls_pool* pool = nullptr;
  ls_metadata* metadata = nullptr;
  ls_pool_spec spec = init<ls_pool_spec>();
  ls_context context = init<ls_context>();

  Fixture() {
    EXPECT_EQ(ls_model_from_preset("tiny", 0, 1, &model), LS_OK);
    spec.model = model;
    EXPECT_EQ(ls_pool_create(&spec, 4, LS_CPU, 0, &pool), LS_OK);
    auto room = init<ls_forward_capacity>();
    room.rows = 4;
    room.snapshots = 1;
    EXPECT_EQ(ls_metadata_create(&room, LS_CPU, 0, &metadata), LS_OK);
    for (int64_t layer = 0; layer < 2; ++layer) {
      ls_tensor view;
      EXPECT_EQ(ls_pool_recurrent(pool, layer, &view), LS_OK);
      for (int64_t i = 0; i < 4 * view.stride[0]; ++i) {
        static_cast<float*>(view.data)[i] = static_cast<float>(i % 97);
      }
    }
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;
  ~Fixture() {
    ls_metadata_destroy(metadata);
    ls_pool_destroy(pool);
    ls_model_destroy(model);
  }
  std::string state() const {
    ls_tensor view;
    EXPECT_EQ(ls_pool_recurrent(pool, 0, &view), LS_OK);
    return std::string(static_cast<const char*>(view.data),
                       static_cast<size_t>(4 * view.stride[0]) * sizeof(float));
  }
};

TEST_P(COutOfMemory, EveryHandle) {
  Fixture f;
  fail_create<ls_model>([](ls_model** out) { return ls_model_from_preset("kimi-k3", 1, 2, out); },
                        ls_model_destroy);
  fail_create<ls_model>([&](ls_model** out) { return ls_model_limit_layers(f.model, 1, out); },
                        ls_model_destroy);
  auto layer = init<ls_layer_spec>();
  layer.num_heads = 2;
  layer.k_dim = 16;
  fail_create<ls_model>(
      [&](ls_model** out) { return ls_model_from_layers(&layer, 1, 1, 0, 1, out); },
      ls_model_destroy);
  fail_create<ls_pool>([&](ls_pool** out) { return ls_pool_create(&f.spec, 4, LS_CPU, 0, out); },
                       ls_pool_destroy);
  auto room = init<ls_forward_capacity>();
  room.rows = 4;
  fail_create<ls_metadata>(
      [&](ls_metadata** out) { return ls_metadata_create(&room, LS_CPU, 0, out); },
      ls_metadata_destroy);
  fail_create<ls_records>(
      [&](ls_records** out) { return ls_records_create(f.model, LS_F32, 8, LS_CPU, 0, out); },
      ls_records_destroy);
  auto options = init<ls_kernel_options>();
  options.base = "a kernel whose name is longer than any small buffer";
  fail_create<ls_kda_backend>(
      [&](ls_kda_backend** out) { return ls_kda_backend_create(f.model, &options, out); },
      ls_kda_backend_destroy);
  fail_create<ls_lightning_backend>(
      [&](ls_lightning_backend** out) {
        return ls_lightning_backend_create(f.model, &options, out);
      },
      ls_lightning_backend_destroy);
  auto cache = init<ls_prefix_cache_options>();
  cache.bytes_per_snapshot = 1;
  fail_create<ls_prefix_cache>(
      [&](ls_prefix_cache** out) { return ls_prefix_cache_create(&cache, out); },
      ls_prefix_cache_destroy);
}

TEST_P(COutOfMemory, BatchesPacksAndDescriptors) {
  Fixture f;
  int64_t bytes = 0, written = 0, position = 0;
  EXPECT_EQ(ls_slot_pack_bytes(&f.spec, LS_PACK_EXACT, &bytes), LS_OK);
  std::vector<char> pack(static_cast<size_t>(bytes));
  EXPECT_GT(fail([&] {
              return ls_pack_slot(f.pool, 3, 5, LS_PACK_EXACT, pack.data(), pack.size(), &written);
            }),
            0);
  auto info = init<ls_slot_pack_info>();
  EXPECT_GT(
      fail([&] { return ls_read_slot_pack(pack.data(), pack.size(), &info, nullptr, 0, nullptr); }),
      0);
  EXPECT_EQ(info.position, 5);
  size_t count = 0;
  EXPECT_GT(fail([&] { return ls_transfer_descriptors(f.pool, nullptr, 0, &count); }), 0);

  auto row = init<ls_row>();
  row.start = 5;
  row.tokens = 2;
  row.num_valid = -1;
  auto request = init<ls_snapshot_request>();
  request.position = 6;
  request.slot = 2;
  auto restore = init<ls_slot_restore>();
  restore.pack = pack.data();
  restore.pack_size = pack.size();
  const int32_t clear[] = {1};
  auto batch = init<ls_forward_batch>();
  batch.rows = &row;
  batch.num_rows = 1;
  batch.clear = clear;
  batch.num_clears = 1;
  batch.snapshots = &request;
  batch.num_snapshots = 1;
  batch.restores = &restore;
  batch.num_restores = 1;
  const std::string before = f.state();
  auto counts = init<ls_batch_counts>();
  EXPECT_GT(fail([&] { return ls_metadata_prepare(f.metadata, &batch, f.pool, &f.context); },
                 [&] {
                   EXPECT_TRUE(f.state() == before);
                   EXPECT_EQ(ls_metadata_counts(f.metadata, &counts), LS_OK);
                   EXPECT_EQ(counts.num_rows, 0);
                 }),
            5);
  EXPECT_FALSE(f.state() == before);
  const std::string after = f.state();
  EXPECT_GT(
      fail([&] { return ls_unpack_slot(pack.data(), pack.size(), f.pool, 2, nullptr, &position); },
           [&] { EXPECT_TRUE(f.state() == after); }),
      0);
  EXPECT_EQ(position, 5);
}

TEST_P(COutOfMemory, PrefixCacheLosesNoSlot) {
  ls_prefix_cache* cache = nullptr;
  auto options = init<ls_prefix_cache_options>();
  options.byte_budget = 3;
  options.bytes_per_snapshot = 1;
  ASSERT_EQ(ls_prefix_cache_create(&options, &cache), LS_OK);
  auto stats = init<ls_prefix_cache_stats>();
  std::vector<int64_t> tokens(257, 1);
  int32_t outcome = -1;
  std::vector<bool> back(20, false);
  const auto take_freed = [&] {
    int32_t slots[20];
    size_t count = 0;
    ASSERT_EQ(ls_prefix_cache_take_freed(cache, slots, 20, &count), LS_OK);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_FALSE(back[static_cast<size_t>(slots[i])]) << "slot " << slots[i] << " twice";
      back[static_cast<size_t>(slots[i])] = true;
    }
  };
  for (int32_t slot = 0; slot < 12; ++slot) {
    tokens[static_cast<size_t>(64 * (slot % 3))] = slot;
    ASSERT_EQ(ls_prefix_cache_get_stats(cache, &stats), LS_OK);
    const int64_t inserted = stats.inserted, evicted = stats.evicted;
    fail(
        [&] {
          return ls_prefix_cache_insert(cache, tokens.data(), 256, 64 * (1 + slot % 4), slot,
                                        &outcome);
        },
        [&] {
          ASSERT_EQ(ls_prefix_cache_get_stats(cache, &stats), LS_OK);
          EXPECT_EQ(stats.inserted, inserted);
          EXPECT_EQ(stats.evicted, evicted);
        });
    take_freed();
  }
  ls_prefix_lease* lease = nullptr;
  int32_t slot = -1;
  int64_t position = 0;
  ASSERT_EQ(ls_prefix_cache_get_stats(cache, &stats), LS_OK);
  const int64_t lookups = stats.lookups;
  EXPECT_GT(fail(
                [&] {
                  return ls_prefix_cache_match(cache, tokens.data(), tokens.size(), &lease, &slot,
                                               &position);
                },
                [&] {
                  EXPECT_EQ(lease, nullptr);
                  ASSERT_EQ(ls_prefix_cache_get_stats(cache, &stats), LS_OK);
                  EXPECT_EQ(stats.leased, 0);
                  EXPECT_EQ(stats.lookups, lookups);
                }),
            0);
  ASSERT_NE(lease, nullptr);
  ls_prefix_lease_destroy(lease);
  EXPECT_GT(fail([&] { return ls_prefix_cache_evict(cache, 1); }), 0);
  EXPECT_GT(fail([&] { return ls_prefix_cache_clear(cache); }), 0);
  take_freed();
  for (int32_t i = 0; i < 12; ++i) EXPECT_TRUE(back[static_cast<size_t>(i)]) << i;
  ls_prefix_cache_destroy(cache);
}

TEST_P(COutOfMemory, Kernels) {
  auto kernel = init<ls_kernel>();
  kernel.name = "a kernel of this test, with a name of some length";
  kernel.summary = "and a summary that is no shorter than the name";
  kernel.run = [](const void*, const ls_context*, void*, char*, size_t) { return LS_OK; };
  EXPECT_GT(fail([&] { return ls_register_kernel("state_clear", &kernel); }), 0);
  const auto listed = [&] {
    std::vector<char> text(1 << 16);
    EXPECT_EQ(ls_list_kernels(text.data(), text.size(), nullptr), LS_OK);
    return std::strstr(text.data(), kernel.name) != nullptr;
  };
  EXPECT_TRUE(listed());
  ls_status refused = LS_OK;
  without_memory([&] { refused = ls_list_kernels(nullptr, 0, nullptr); });
  EXPECT_EQ(refused, LS_RESOURCE_EXHAUSTED);
  EXPECT_STRNE(ls_last_error(), "");
  fail([&] { return ls_unregister_kernel("state_clear", kernel.name); },
       [&] { EXPECT_TRUE(listed()); });
  EXPECT_FALSE(listed());
}

}  // namespace
}  // namespace linestate
