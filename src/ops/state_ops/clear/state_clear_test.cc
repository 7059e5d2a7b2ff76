#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "linestate/ops/state_ops.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"
#include "testing/sparse_memory.h"

namespace linestate::testing {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF16 = DType::kF16;

class StateClear : public ::testing::TestWithParam<const char*> {
 protected:
  void run(std::span<const TensorView> planes, const ConstTensorView& slots, int threads = 0) {
    StateClearParams params;
    params.planes = planes;
    params.slots = slots;
    ExecContext context;
    context.num_threads = threads;
    const Status status = state_clear(params, context, GetParam());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, StateClear, ::testing::Values("cpu", "ref"));

// Two layers: f32 states, a bf16 window, f16 states in a wide slot with a border, an f32 window
// kept channels-last.
struct Pool {
  HostTensor a{kF32, {6, 3, 16, 32}};
  HostTensor b{kBF16, {6, 40, 3}};
  HostTensor c{kF16, {6, 1000}};
  HostTensor d{kF32, {6, 3, 50}};
  std::vector<TensorView> planes;
  Pool() {
    fill_normal(a, 1);
    fill_normal(b, 2);
    fill_normal(c, 3);
    fill_normal(d, 4);
    fill_nan(a.view().slice(0, 2, 3));  // clearing must not read
    planes = {a, b, c.view().slice(1, 100, 900).split(1, 20).split(1, 10),
              d.view().slice(2, 5, 45).transpose(1, 2)};
  }
};

TEST_P(StateClear, ClearsTheSlotsAndNothingElse) {
  for (int threads : {1, 2, 3}) {
    Pool pool;
    const Pool before;
    run(pool.planes, i32_tensor({4, -1, 2, 4, 6, std::numeric_limits<int32_t>::min()}), threads);
    for (size_t p = 0; p < pool.planes.size(); ++p) {
      for (int64_t slot = 0; slot < 6; ++slot) {
        const TensorView now = pool.planes[p].slice(0, slot, slot + 1);
        if (slot == 4 || slot == 2) {
          HostTensor zero(now.dtype, copy_of(now).shape());
          EXPECT_EQ(bit_difference(now, zero), "") << "plane " << p << " slot " << slot;
        } else {
          EXPECT_EQ(bit_difference(now, before.planes[p].slice(0, slot, slot + 1)), "");
        }
      }
    }
    // Borders of the wide slots.
    for (const auto& [begin, end] : {std::pair(0, 100), std::pair(900, 1000)}) {
      EXPECT_EQ(
          bit_difference(pool.c.view().slice(1, begin, end), before.c.view().slice(1, begin, end)),
          "");
    }
    for (const auto& [begin, end] : {std::pair(0, 5), std::pair(45, 50)}) {
      EXPECT_EQ(
          bit_difference(pool.d.view().slice(2, begin, end), before.d.view().slice(2, begin, end)),
          "");
    }
  }
}

TEST_P(StateClear, AnySlotIdTensor) {
  Pool pool;
  HostTensor ids(DType::kI64, {2, 3});
  for (int64_t i = 0; i < 6; ++i) ids.set(i, static_cast<double>(i));
  run(pool.planes, ids.view().select(1, 1));  // 1 and 4
  for (const TensorView& plane : pool.planes) {
    for (int64_t slot : {1, 4}) EXPECT_EQ(nonzero(plane.slice(0, slot, slot + 1)), "");
    for (int64_t slot : {0, 2, 3, 5}) EXPECT_NE(nonzero(plane.slice(0, slot, slot + 1)), "");
  }
}

TEST_P(StateClear, NothingToDo) {
  Pool pool;
  const Pool before;
  run(pool.planes, i32_tensor({}));
  run({}, i32_tensor({0}));
  for (size_t p = 0; p < pool.planes.size(); ++p) {
    EXPECT_EQ(bit_difference(pool.planes[p], before.planes[p]), "");
  }
}

TEST_P(StateClear, SlotsBeyond31Bits) {
  constexpr int64_t kPitch = int64_t{1} << 30;
  const SparseMemory memory(3 * kPitch * 2);
  TensorView plane(memory.data(), kBF16, {3, 2, 8});
  plane.stride = {kPitch, 8, 1};
  fill_constant(plane, 1.0);
  const std::vector<TensorView> planes{plane};
  run(planes, i32_tensor({2}));
  EXPECT_EQ(nonzero(plane.slice(0, 2, 3)), "");
  const HostTensor kept = copy_of(plane.slice(0, 0, 2));
  for (int64_t i = 0; i < kept.num_elements(); ++i) EXPECT_EQ(kept.at(i), 1.0);
}

TEST_P(StateClear, FlagsSlotsPastThePool) {
  Pool pool;
  StateClearParams params;
  const HostTensor slots = i32_tensor({0, -1, 6});
  params.planes = pool.planes;
  params.slots = slots;
  DeviceStatus device_status;
  ExecContext context;
  context.status = &device_status;
  ASSERT_TRUE(state_clear(params, context, GetParam()).ok());
  EXPECT_EQ(device_status.row_of(DeviceFlag::kSlotOutOfRange), 2);
}

TEST(StateClearContract, RefusesByName) {
  const auto refuses = [](const char* expected, const auto& change) {
    Pool pool;
    const Pool before;
    const HostTensor slots = i32_tensor({0, 1});
    StateClearParams params;
    params.slots = slots;
    change(pool.planes, params);
    params.planes = pool.planes;
    const Status status = state_clear(params, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << expected;
    EXPECT_EQ(status.message().substr(0, std::strlen(expected)), expected);
    EXPECT_EQ(explain_state_clear(params, {}).problem, status.message());
    EXPECT_EQ(bit_difference(pool.a, before.a), "");
    EXPECT_EQ(bit_difference(pool.b, before.b), "");
    EXPECT_EQ(bit_difference(pool.c, before.c), "");
    EXPECT_EQ(bit_difference(pool.d, before.d), "");
  };
  using Planes = std::vector<TensorView>;
  using P = StateClearParams;
  refuses("planes[1]: expected shape [slots, ...], got undefined",
          [](Planes& planes, P&) { planes[1] = {}; });
  refuses("planes[2]: expected dtype f32 or bf16 or f16, got i32",
          [](Planes& planes, P&) { planes[2].dtype = DType::kI32; });
  refuses("planes[3]: expected the 6 slots of planes[0], got 5",
          [](Planes& planes, P&) { planes[3] = planes[3].slice(0, 0, 5); });
  refuses("planes[1]: expected strides", [](Planes& planes, P&) { planes[1].stride[0] = 10; });
  refuses("planes[0]: expected memory", [](Planes& planes, P&) { planes[0].data = nullptr; });
  refuses("planes[0]: expected device", [](Planes& planes, P&) {
    planes[0].device = {DeviceType::kCuda, 0};
  });
  refuses("slots: expected shape [any]", [](Planes&, P& p) { p.slots = {}; });
  refuses("slots: expected dtype", [](Planes&, P& p) { p.slots.dtype = kF32; });
}

}  // namespace
}  // namespace linestate::testing
