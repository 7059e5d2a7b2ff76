#include "linestate/state_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate {
namespace {

using testing::HostTensor;

PoolSpec small_spec(DType state = DType::kF32) {
  PoolSpec spec;
  spec.state_dtype = state;
  spec.layers.push_back({0, StateLayout::kVK, 4, 16, 32, 96, 3});
  spec.layers.push_back({1, StateLayout::kKV, 2, 16, 16, 0, 0});
  return spec;
}

TEST(StatePool, ViewsHaveTheDeclaredLayout) {
  Result<StatePool> pool = StatePool::create(small_spec(), 5);
  ASSERT_TRUE(pool.ok()) << pool.status().to_string();
  EXPECT_EQ(describe(pool->recurrent(0)).substr(0, 16), "f32[5, 4, 32, 16");  // [P, HV, V, K]
  EXPECT_EQ(describe(pool->recurrent(1)).substr(0, 16), "f32[5, 2, 16, 16");  // [P, H, K, V]
  const TensorView window = pool->conv_window(0);
  EXPECT_EQ(window.shape[1], 96);
  EXPECT_EQ(window.shape[2], 3);
  EXPECT_EQ(window.dtype, DType::kBF16);
  EXPECT_FALSE(pool->conv_window(1).defined());
  EXPECT_EQ(pool->planes().size(), 3u);
}

TEST(StatePool, PlanesAndSlotsNeverShareMemory) {
  Result<StatePool> pool = StatePool::create(small_spec(DType::kF16), 3);
  ASSERT_TRUE(pool.ok());
  // Give every element of every plane its own tag; all must survive.
  double tag = 0;
  for (const TensorView& plane : pool->planes()) testing::fill_constant(plane, ++tag);
  tag = 0;
  for (const TensorView& plane : pool->planes()) {
    ++tag;
    testing::for_each_offset(plane, [&](int64_t offset) {
      uint16_t bits = static_cast<const uint16_t*>(plane.data)[offset];
      const float value = plane.dtype == DType::kF16 ? static_cast<float>(bits == 0x3c00   ? 1
                                                                          : bits == 0x4000 ? 2
                                                                          : bits == 0x4200 ? 3
                                                                                           : -1)
                                                     : static_cast<float>(bits == 0x3f80   ? 1
                                                                          : bits == 0x4000 ? 2
                                                                                           : -1);
      ASSERT_EQ(value, tag);
    });
  }
}

TEST(StatePool, SizesAddUp) {
  const PoolSpec spec = small_spec();
  const int64_t per_slot = 4 * 16 * 32 * 4 + 96 * 3 * 2 + 2 * 16 * 16 * 4;
  EXPECT_EQ(bytes_per_slot(spec), per_slot);
  EXPECT_EQ(max_slots(spec, per_slot - 1), 0);
  const int64_t slots = max_slots(spec, 1 << 20);
  EXPECT_LE(slots, (1 << 20) / per_slot);
  EXPECT_GE(slots, (1 << 20) / per_slot - 1);  // alignment may cost one
  EXPECT_EQ(max_slots(spec, 0), 0);
  EXPECT_EQ(max_slots(spec, -5), 0);
}

TEST(StatePool, RefusesBadSpecsByName) {
  auto message = [](const PoolSpec& spec, int64_t slots) {
    return StatePool::create(spec, slots).status().message();
  };
  EXPECT_NE(message(small_spec(), 0).find("num_slots: expected 1 to"), std::string::npos);
  PoolSpec spec = small_spec();
  spec.layers[0].k_dim = 24;
  EXPECT_NE(message(spec, 1).find("spec.layers[0].k_dim: expected a multiple of 16"),
            std::string::npos);
  spec = small_spec();
  spec.layers[1].conv_tail = 3;
  EXPECT_NE(message(spec, 1).find("spec.layers[1]: expected conv_channels and conv_tail both"),
            std::string::npos);
  spec = small_spec(DType::kI32);
  EXPECT_NE(message(spec, 1).find("spec.state_dtype"), std::string::npos);
  EXPECT_NE(message({}, 1).find("at least one layer"), std::string::npos);
}

TEST(StatePool, AbsurdSizesAreAnErrorNotACrash) {
  PoolSpec spec = small_spec();
  spec.layers[0].heads = int64_t{1} << 20;
  const Status status = StatePool::create(spec, INT32_MAX).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("cannot allocate 2147483647 slots"), std::string::npos);
  spec.layers.resize(2000, spec.layers[0]);  // more bytes than 63 bits count
  EXPECT_EQ(StatePool::create(spec, INT32_MAX).status().code(), StatusCode::kResourceExhausted);
  spec.layers[0].heads = int64_t{1} << 40;
  EXPECT_EQ(StatePool::create(spec, 1).status().code(), StatusCode::kInvalidArgument);
}

TEST(StatePool, LifeOfASlot) {
  Result<StatePool> made = StatePool::create(small_spec(), 3);
  ASSERT_TRUE(made.ok());
  StatePool& pool = *made;
  EXPECT_EQ(*pool.allocate(), 0);
  EXPECT_EQ(*pool.allocate(), 1);
  EXPECT_EQ(*pool.allocate(), 2);
  EXPECT_EQ(pool.allocate().status().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(pool.free(1).ok());
  EXPECT_FALSE(pool.allocated(1));
  EXPECT_EQ(pool.free(1).code(), StatusCode::kInvalidArgument) << "double free";
  EXPECT_EQ(pool.free(-1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pool.free(3).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*pool.allocate(), 1);
}

TEST(StatePool, RetiredSlotWaitsForItsEvent) {
  Result<StatePool> made = StatePool::create(small_spec(), 1);
  ASSERT_TRUE(made.ok());
  StatePool& pool = *made;
  bool passed = false;
  SlotEvent event;
  event.done = [](void* handle) { return *static_cast<bool*>(handle); };
  event.handle = &passed;
  ASSERT_TRUE(pool.allocate().ok());
  ASSERT_TRUE(pool.retire(0, event).ok());
  EXPECT_EQ(pool.in_flight_slots(), 1);
  const Result<int32_t> early = pool.allocate();
  EXPECT_NE(early.status().message().find("1 retired and still in flight"), std::string::npos);
  EXPECT_EQ(pool.free(0).code(), StatusCode::kInvalidArgument) << "already given back";
  passed = true;
  EXPECT_EQ(*pool.allocate(), 0);
  EXPECT_EQ(pool.in_flight_slots(), 0);
}

TEST(StatePool, RandomAllocationNeverHandsOutASlotTwice) {
  Result<StatePool> made = StatePool::create(small_spec(), 17);
  ASSERT_TRUE(made.ok());
  StatePool& pool = *made;
  std::set<int32_t> live;
  testing::Random random(3);
  for (int step = 0; step < 20000; ++step) {
    if (random.uniform() < 0.5) {
      const Result<int32_t> slot = pool.allocate();
      ASSERT_EQ(slot.ok(), live.size() < 17u);
      if (slot.ok()) {
        ASSERT_TRUE(live.insert(*slot).second);
      }
    } else if (!live.empty()) {
      auto victim = live.begin();
      std::advance(victim, random.integer(0, static_cast<int64_t>(live.size()) - 1));
      ASSERT_TRUE(pool.free(*victim).ok());
      live.erase(victim);
    }
    ASSERT_EQ(pool.free_slots(), 17 - static_cast<int64_t>(live.size()));
  }
}

TEST(StatePool, AdoptsPageMajorMemoryWithWideSlotPitch) {
  const PoolSpec spec = small_spec();
  // One page a slot: [slot][layer 0 state | layer 0 window | layer 1 state | spare].
  constexpr int64_t kPage = 4096;  // f32 elements
  HostTensor pages(DType::kF32, {6, kPage});
  std::vector<AdoptedLayer> layers(2);
  float* base = static_cast<float*>(pages.data());
  layers[0].recurrent = TensorView(base, DType::kF32, {6, 4, 32, 16});
  layers[0].recurrent.stride[0] = kPage;
  layers[0].conv_window = TensorView(base + 2048, DType::kBF16, {6, 96, 3});
  layers[0].conv_window.stride[0] = 2 * kPage;
  layers[1].recurrent = TensorView(base + 2048 + 160, DType::kF32, {6, 2, 16, 16});
  layers[1].recurrent.stride[0] = kPage;
  Result<StatePool> pool = StatePool::adopt(spec, layers);
  ASSERT_TRUE(pool.ok()) << pool.status().to_string();
  EXPECT_EQ(pool->num_slots(), 6);
  EXPECT_EQ(pool->recurrent(0).stride[0], kPage);
  EXPECT_EQ(pool->release_memory().code(), StatusCode::kFailedPrecondition);
}

TEST(StatePool, AdoptRefusesByLayerAndTensor) {
  const PoolSpec spec = small_spec();
  HostTensor state0(DType::kF32, {6, 4, 32, 16});
  HostTensor window0(DType::kBF16, {6, 96, 3});
  HostTensor state1(DType::kF32, {6, 2, 16, 16});
  auto try_adopt = [&](auto&& change) {
    std::vector<AdoptedLayer> layers(2);
    layers[0] = {state0, window0};
    layers[1] = {state1, {}};
    change(layers);
    const Result<StatePool> pool = StatePool::adopt(spec, layers);
    return pool.ok() ? std::string("ok") : pool.status().message();
  };
  auto mentions = [&](const std::string& text, auto&& change) {
    const std::string message = try_adopt(change);
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  using Layers = std::vector<AdoptedLayer>;
  EXPECT_EQ(try_adopt([](Layers&) {}), "ok");
  mentions("layers: expected 2, got 1", [](Layers& l) { l.pop_back(); });
  mentions("layers[0].conv_window: expected shape [6, 96, 3]",
           [](Layers& l) { l[0].conv_window = l[0].conv_window.transpose(1, 2); });
  mentions("layers[0].recurrent: expected dtype f32, got bf16",
           [](Layers& l) { l[0].recurrent.dtype = DType::kBF16; });
  mentions("layers[1].recurrent: expected strides that keep elements apart",
           [](Layers& l) { l[1].recurrent.stride[0] = 0; });
  mentions("layers[1].recurrent: expected shape [6, 2, 16, 16]",
           [](Layers& l) { l[1].recurrent = l[1].recurrent.slice(0, 0, 5); });
  mentions("layers[1].conv_window: expected none",
           [&](Layers& l) { l[1].conv_window = window0.view(); });
  mentions("layers[1].recurrent: expected device cpu, got cuda:0", [](Layers& l) {
    l[1].recurrent.device = {DeviceType::kCuda, 0};
  });
}

TEST(StatePool, ReleaseAndRebind) {
  Result<StatePool> made = StatePool::create(small_spec(), 4);
  ASSERT_TRUE(made.ok());
  StatePool& pool = *made;
  ASSERT_TRUE(pool.allocate().ok());
  EXPECT_EQ(pool.rebind_memory().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(pool.release_memory().ok());
  EXPECT_FALSE(pool.memory_bound());
  EXPECT_EQ(pool.recurrent(0).data, nullptr);
  EXPECT_EQ(pool.release_memory().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(pool.rebind_memory().ok());
  EXPECT_TRUE(pool.allocated(0)) << "slots stay allocated";
  testing::fill_constant(pool.recurrent(1), 2.0);  // the memory is there
}

TEST(StatePool, SnapshotMarksLiveAsLongAsTheSlot) {
  Result<StatePool> made = StatePool::create(small_spec(), 4);
  ASSERT_TRUE(made.ok());
  StatePool& pool = *made;
  EXPECT_EQ(pool.snapshot_position(0).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(pool.mark_snapshot(0, 64).code(), StatusCode::kInvalidArgument) << "not allocated";
  const int32_t a = *pool.allocate();
  const int32_t b = *pool.allocate();
  ASSERT_TRUE(pool.mark_snapshot(b, 128).ok());
  EXPECT_EQ(*pool.snapshot_position(b), 128);
  EXPECT_EQ(pool.snapshot_position(a).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(pool.mark_snapshot(a, 64).ok());
  ASSERT_TRUE(pool.mark_snapshot(a, int64_t{1} << 40).ok()) << "a later mark replaces";
  EXPECT_EQ(*pool.snapshot_position(a), int64_t{1} << 40);
  EXPECT_EQ(*pool.snapshot_position(b), 128);

  ASSERT_TRUE(pool.free(a).ok());
  EXPECT_EQ(pool.snapshot_position(a).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(*pool.allocate(), a);
  EXPECT_EQ(pool.snapshot_position(a).status().code(), StatusCode::kFailedPrecondition);
  bool done = false;
  ASSERT_TRUE(pool.retire(b, {[](void* d) { return *static_cast<bool*>(d); }, &done}).ok());
  EXPECT_EQ(pool.snapshot_position(b).status().code(), StatusCode::kFailedPrecondition);

  ASSERT_TRUE(pool.mark_snapshot(a, 64).ok());
  ASSERT_TRUE(pool.clear_snapshot(a).ok());
  ASSERT_TRUE(pool.clear_snapshot(a).ok()) << "harmless twice";
  EXPECT_EQ(pool.snapshot_position(a).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(pool.mark_snapshot(a, 64).ok());
  ASSERT_TRUE(pool.release_memory().ok());
  EXPECT_EQ(pool.snapshot_position(a).status().code(), StatusCode::kFailedPrecondition);
}

TEST(StatePool, SnapshotMarksRefuseBadArguments) {
  Result<StatePool> made = StatePool::create(small_spec(), 2);
  ASSERT_TRUE(made.ok());
  StatePool& pool = *made;
  const int32_t slot = *pool.allocate();
  for (int64_t position : {int64_t{0}, int64_t{-64}, INT64_MIN}) {
    const Status status = pool.mark_snapshot(slot, position);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("position: expected >= 1"), std::string::npos);
  }
  for (int32_t bad : {-1, 1, 2, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(pool.mark_snapshot(bad, 64).code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_EQ(pool.clear_snapshot(bad).code(), StatusCode::kInvalidArgument) << bad;
  }
  for (int32_t bad : {-1, 2, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(pool.snapshot_position(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace linestate
