#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "linestate/ops/state_ops.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/half.h"
#include "testing/host_tensor.h"
#include "testing/sparse_memory.h"

namespace linestate::testing {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF16 = DType::kF16;

struct Planes {
  std::vector<ConstTensorView> src;
  std::vector<TensorView> dst;
  HostTensor src_slots, dst_slots;
  StateCopyParams params() const { return {src, dst, src_slots, dst_slots}; }
};

class StateCopy : public ::testing::TestWithParam<const char*> {
 protected:
  void run(const StateCopyParams& params, int threads = 0) {
    ExecContext context;
    context.num_threads = threads;
    const Status status = state_copy(params, context, GetParam());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, StateCopy, ::testing::Values("cpu", "ref"));

// Between pools of different size: pairs move, padding on either side skips, the rest stays.
TEST_P(StateCopy, MovesPairsAndNothingElse) {
  for (int threads : {1, 2, 3}) {
    HostTensor states(kF32, {5, 2, 16, 32}), windows(kBF16, {5, 40, 3});
    HostTensor to_states(kF32, {7, 2, 16, 32}), to_windows(kBF16, {7, 40, 3});
    fill_normal(states, 1);
    fill_normal(windows, 2);
    fill_normal(to_states, 3);
    fill_normal(to_windows, 4);
    const HostTensor before_states = to_states.clone();
    const HostTensor before_windows = to_windows.clone();
    // The same source twice is legal; a padded pair may name a taken destination.
    Planes planes{{states, windows},
                  {to_states, to_windows},
                  i32_tensor({4, 0, -1, 2, 4, 5, std::numeric_limits<int32_t>::min()}),
                  i64_tensor({6, 2, 6, -1, 0, 3, 6})};
    run(planes.params(), threads);
    const int64_t source_of[7] = {4, -1, 0, -1, -1, -1, 4};
    for (int64_t slot = 0; slot < 7; ++slot) {
      const int64_t from = source_of[slot];
      const auto expected = [&](const HostTensor& source, const HostTensor& old) {
        return from < 0 ? old.view().slice(0, slot, slot + 1)
                        : source.view().slice(0, from, from + 1);
      };
      EXPECT_EQ(bit_difference(to_states.view().slice(0, slot, slot + 1),
                               expected(states, before_states)),
                "");
      EXPECT_EQ(bit_difference(to_windows.view().slice(0, slot, slot + 1),
                               expected(windows, before_windows)),
                "");
    }
  }
}

TEST_P(StateCopy, WithinOnePool) {
  HostTensor pool(kF32, {8, 3, 50});
  fill_normal(pool, 1);
  const HostTensor before = pool.clone();
  Planes planes{{pool}, {pool}, i32_tensor({1, 1, 7, -1}), i32_tensor({0, 5, 2, 1})};
  run(planes.params());
  const int64_t source_of[8] = {1, 1, 7, 3, 4, 1, 6, 7};
  for (int64_t slot = 0; slot < 8; ++slot) {
    EXPECT_EQ(bit_difference(pool.view().slice(0, slot, slot + 1),
                             before.view().slice(0, source_of[slot], source_of[slot] + 1)),
              "");
  }
}

TEST_P(StateCopy, EqualDtypesCopyBits) {
  const uint32_t words[4] = {0x7fa00001u, 0xffc12345u, 0x80000000u, 0x00000001u};
  HostTensor src(kF32, {1, 4}), dst(kF32, {1, 4});
  std::memcpy(src.data(), words, sizeof words);
  run(Planes{{src}, {dst}, i32_tensor({0}), i32_tensor({0})}.params());
  EXPECT_EQ(std::memcmp(dst.data(), words, sizeof words), 0);
  const uint16_t halves[4] = {0x7c01, 0xfe55, 0x8000, 0x0001};
  for (DType dtype : {kF16, kBF16}) {
    HostTensor src16(dtype, {1, 4}), dst16(dtype, {1, 4});
    std::memcpy(src16.data(), halves, sizeof halves);
    run(Planes{{src16}, {dst16}, i32_tensor({0}), i32_tensor({0})}.params());
    EXPECT_EQ(std::memcmp(dst16.data(), halves, sizeof halves), 0);
  }
  for (DType dtype : {DType::kU8, DType::kI32, DType::kI64, DType::kF64}) {
    HostTensor a(dtype, {2, 5}), b(dtype, {2, 5});
    for (int64_t i = 0; i < 10; ++i) a.set(i, static_cast<double>(i + 3));
    run(Planes{{a}, {b}, i32_tensor({0, 1}), i32_tensor({1, 0})}.params());
    for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(b.at(i), a.at((i + 5) % 10)) << dtype_name(dtype);
  }
}

TEST_P(StateCopy, ConvertsWithRoundToNearestEven) {
  for (DType from : {kF32, kBF16, kF16}) {
    for (DType to : {kF32, kBF16, kF16}) {
      HostTensor src(from, {3, 2, 300}), dst(to, {3, 2, 300});
      fill_normal(src, 8, 100.0);
      for (int64_t i = 0; i < 300; ++i) src.set(i, src.at(i) * 1e-7);  // f16 subnormals
      // Ties: 1 + 2^-8 (even below) and 1 + 3 * 2^-8 (even above) in bf16, 2^-11 steps in f16.
      src.set(600, 1.0 + 0x1p-8);
      src.set(601, 1.0 + 0x1.8p-7);
      src.set(602, 1.0 + 0x1p-11);
      src.set(603, 1.0 + 0x1.8p-10);
      src.set(604, -0.0);
      fill_nan(dst);
      run(Planes{{src}, {dst}, i32_tensor({2, 0, 1}), i32_tensor({0, 1, 2})}.params());
      for (int64_t i = 0; i < 1800; ++i) {
        const int64_t at = (i + 1200) % 1800;
        ASSERT_EQ(dst.at(i), round_to(to, src.at(at))) << dtype_name(from) << dtype_name(to) << i;
      }
    }
  }
  HostTensor tie(kF32, {1, 2}), rounded(kBF16, {1, 2});
  tie.set(0, 1.0 + 0x1p-8);
  tie.set(1, 1.0 + 0x1.8p-7);
  run(Planes{{tie}, {rounded}, i32_tensor({0}), i32_tensor({0})}.params());
  EXPECT_EQ(rounded.at(0), 1.0);
  EXPECT_EQ(rounded.at(1), 1.0 + 0x1p-6);
}

TEST_P(StateCopy, OverflowIsReportedAndInfinityIsNot) {
  HostTensor first(kF32, {4, 10}), second(kF32, {4, 10});
  HostTensor first16(kF16, {9, 10}), second16(kF16, {9, 10});
  fill_constant(first, 1.0);
  fill_constant(second, 1.0);
  first.set(2, std::numeric_limits<double>::infinity());
  first.set(3, std::numeric_limits<double>::quiet_NaN());
  first.set(4, 65519.0);  // rounds down to the largest f16
  DeviceStatus device_status;
  ExecContext context;
  context.status = &device_status;
  Planes planes{
      {first, second}, {first16, second16}, i32_tensor({0, -1, 3}), i32_tensor({8, 0, 5})};
  ASSERT_TRUE(state_copy(planes.params(), context, GetParam()).ok());
  EXPECT_EQ(device_status.describe(), "");
  second.set(35, -65520.0);
  ASSERT_TRUE(state_copy(planes.params(), context, GetParam()).ok());
  EXPECT_EQ(device_status.row_of(DeviceFlag::kStateOverflow), 2);
  EXPECT_EQ(device_status.overflow_slot.load(), 5);
  EXPECT_EQ(device_status.overflow_layer.load(), 1);
  EXPECT_EQ(second16.at(55), -std::numeric_limits<double>::infinity());
}

TEST_P(StateCopy, FlagsSlotsPastThePool) {
  HostTensor src(kF32, {4, 2}), dst(kF32, {3, 2});
  DeviceStatus device_status;
  ExecContext context;
  context.status = &device_status;
  Planes planes{{src}, {dst}, i32_tensor({-1, 3, 0}), i32_tensor({0, 2, 3})};
  ASSERT_TRUE(state_copy(planes.params(), context, GetParam()).ok());
  EXPECT_EQ(device_status.row_of(DeviceFlag::kSlotOutOfRange), 2);
}

// [HV, V, K] <-> [HV, K, V], channels-first <-> channels-last, wide pitches, reversed slots.
TEST_P(StateCopy, LayoutsConvert) {
  HostTensor vk(kF32, {4, 3, 16, 32}), kv(kBF16, {4, 3, 32, 16});
  HostTensor window(kBF16, {4, 200}), pages(kBF16, {4, 5, 70});
  fill_normal(vk, 1);
  fill_normal(window, 2);
  fill_normal(pages, 3);
  const HostTensor border = pages.clone();
  const TensorView window_view = window.view().slice(1, 10, 190).split(1, 3);  // [4, 60, 3]
  const TensorView page_view = pages.view().slice(1, 1, 4).slice(2, 4, 64).transpose(1, 2);
  TensorView backwards = kv;
  backwards.data = static_cast<char*>(kv.data()) + 3 * kv.view().stride[0] * 2;
  backwards.stride[0] = -backwards.stride[0];
  Planes planes{{vk, window_view},
                {backwards.transpose(2, 3), page_view},
                i32_tensor({0, 1, 3}),
                i32_tensor({2, 0, 1})};
  for (int threads : {1, 2, 3}) {
    fill_nan(kv);
    run(planes.params(), threads);
    const int64_t pairs[3][2] = {{0, 2}, {1, 0}, {3, 1}};
    for (const auto& [from, to] : pairs) {
      for (int64_t h = 0; h < 3; ++h) {
        for (int64_t v = 0; v < 16; ++v) {
          for (int64_t k = 0; k < 32; ++k) {
            ASSERT_EQ(kv.at((((3 - to) * 3 + h) * 32 + k) * 16 + v),
                      round_to(kBF16, vk.at(((from * 3 + h) * 16 + v) * 32 + k)));
          }
        }
      }
      EXPECT_EQ(
          bit_difference(page_view.slice(0, to, to + 1), window_view.slice(0, from, from + 1)), "");
    }
    EXPECT_EQ(
        bit_difference(page_view.slice(0, 3, 4),
                       border.view().slice(1, 1, 4).slice(2, 4, 64).transpose(1, 2).slice(0, 3, 4)),
        "");
    for (int64_t row : {0, 4}) {
      EXPECT_EQ(
          bit_difference(pages.view().slice(1, row, row + 1), border.view().slice(1, row, row + 1)),
          "");
    }
    EXPECT_EQ(bit_difference(pages.view().slice(2, 0, 4), border.view().slice(2, 0, 4)), "");
    EXPECT_EQ(bit_difference(pages.view().slice(2, 64, 70), border.view().slice(2, 64, 70)), "");
    EXPECT_EQ(std::isnan(kv.at(0)), true) << "slot 3 of the reversed view was not named";
  }
}

// Layers interleaved in pages: each plane of one buffer, copied within it.
TEST_P(StateCopy, PageMajorPools) {
  HostTensor pages(kF32, {6, 100});
  fill_normal(pages, 1);
  const HostTensor before = pages.clone();
  const TensorView layer0 = pages.view().slice(1, 0, 40).split(1, 10);
  const TensorView layer1 = pages.view().slice(1, 60, 100).split(1, 10);
  Planes planes{{layer0, layer1}, {layer0, layer1}, i32_tensor({5}), i32_tensor({2})};
  run(planes.params());
  for (const auto& [begin, end] : {std::pair(0, 40), std::pair(60, 100)}) {
    EXPECT_EQ(bit_difference(pages.view().slice(0, 2, 3).slice(1, begin, end),
                             before.view().slice(0, 5, 6).slice(1, begin, end)),
              "");
  }
  EXPECT_EQ(bit_difference(pages.view().slice(1, 40, 60), before.view().slice(1, 40, 60)), "");
}

TEST_P(StateCopy, SlotsBeyond31Bits) {
  constexpr int64_t kPitch = int64_t{1} << 30;
  const SparseMemory memory(4 * kPitch * 2);
  TensorView pool(memory.data(), kBF16, {4, 2, 8});
  pool.stride = {kPitch, 8, 1};
  fill_normal(pool.slice(0, 2, 3), 5);
  Planes planes{{pool}, {pool}, i32_tensor({2}), i32_tensor({3})};
  run(planes.params());
  EXPECT_EQ(bit_difference(pool.slice(0, 3, 4), pool.slice(0, 2, 3)), "");
  EXPECT_NE(nonzero(pool.slice(0, 3, 4)), "");
  EXPECT_EQ(nonzero(pool.slice(0, 0, 2)), "");
}

TEST_P(StateCopy, RankOneAndEmptyPlanes) {
  HostTensor a(kF32, {3}), b(kF32, {3});
  for (int64_t i = 0; i < 3; ++i) a.set(i, static_cast<double>(i) + 1);
  HostTensor none_a(kF32, {3, 0}), none_b(kF32, {3, 0});
  run(Planes{{a, none_a}, {b, none_b}, i32_tensor({2}), i32_tensor({0})}.params());
  EXPECT_EQ(b.at(0), 3.0);
  EXPECT_EQ(b.at(1), 0.0);
  run(Planes{{}, {}, i32_tensor({2}), i32_tensor({2})}.params());
}

class StateCopyContract : public ::testing::Test {
 protected:
  HostTensor src0{kF32, {4, 2, 8}}, src1{kBF16, {4, 6}};
  HostTensor dst0{kF32, {5, 2, 8}}, dst1{kF16, {5, 6}};

  void refuses(const std::string& expected, Planes planes) {
    const HostTensor before = src0.clone();
    fill_nan(dst0);
    fill_nan(dst1);
    const HostTensor before0 = dst0.clone();
    const HostTensor before1 = dst1.clone();
    const Status status = state_copy(planes.params(), {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << expected;
    EXPECT_EQ(status.message().substr(0, expected.size()), expected);
    EXPECT_EQ(explain_state_copy(planes.params(), {}).problem, status.message());
    EXPECT_EQ(bit_difference(src0, before), "");
    EXPECT_EQ(bit_difference(dst0, before0), "");
    EXPECT_EQ(bit_difference(dst1, before1), "");
  }
  Planes good() { return {{src0, src1}, {dst0, dst1}, i32_tensor({0, 1}), i32_tensor({2, 3})}; }
  template <typename Change>
  void refuses_change(const std::string& expected, const Change& change) {
    Planes planes = good();
    change(planes);
    refuses(expected, std::move(planes));
  }
};

TEST_F(StateCopyContract, GoodOneRuns) { EXPECT_TRUE(state_copy(good().params(), {}).ok()); }

TEST_F(StateCopyContract, RefusesPlanesByName) {
  refuses_change("dst: expected 2 planes as in src, got 1", [](Planes& p) { p.dst.pop_back(); });
  refuses_change("src[1]: expected shape [slots, ...]", [](Planes& p) { p.src[1] = {}; });
  refuses_change("dst[0]: expected shape [slots, ...]", [](Planes& p) { p.dst[0] = {}; });
  refuses_change("dst[0]: expected memory", [](Planes& p) { p.dst[0].data = nullptr; });
  refuses_change("dst[1]: expected strides", [](Planes& p) { p.dst[1].stride[0] = 2; });
  refuses_change("dst[0]: expected the inner shape of src[0]",
                 [](Planes& p) { p.dst[0] = p.dst[0].slice(2, 0, 4); });
  refuses_change("dst[0]: expected the inner shape of src[0]",
                 [](Planes& p) { p.dst[0] = p.dst[0].split(2, 4); });
  refuses_change("src[1]: expected the 4 slots of src[0], got 3",
                 [](Planes& p) { p.src[1] = p.src[1].slice(0, 0, 3); });
  refuses_change("dst[1]: expected the 5 slots of dst[0], got 4",
                 [](Planes& p) { p.dst[1] = p.dst[1].slice(0, 0, 4); });
  refuses_change("dst[1]: expected dtype f32 or bf16 or f16, got i32",
                 [](Planes& p) { p.dst[1].dtype = DType::kI32; });
  refuses_change("dst[1]: expected the dtype and slot stride of src[1] in the same memory",
                 [](Planes& p) {
                   p.src[1] = p.dst[1].slice(0, 0, 4);
                   p.src[1].dtype = kBF16;
                 });
  refuses_change("dst[0]: expected memory apart from src[0]",
                 [](Planes& p) { p.src[0] = p.dst[0].slice(0, 1, 5); });
}

TEST_F(StateCopyContract, RefusesIdsByName) {
  refuses_change("src_slots: expected shape [any]", [](Planes& p) { p.src_slots = HostTensor(); });
  refuses_change("src_slots: expected dtype", [](Planes& p) {
    p.src_slots = f32_tensor({0.0f, 1.0f});
  });
  refuses_change("dst_slots: expected shape [2]", [](Planes& p) { p.dst_slots = i32_tensor({1}); });
  refuses_change("dst_slots: expected distinct live slots, got slot 2 again at index 1",
                 [](Planes& p) {
                   p.dst_slots = i32_tensor({2, 2});
                 });
  const auto one_pool = [&](const std::vector<int32_t>& from, const std::vector<int32_t>& to) {
    return Planes{{dst1, dst0}, {dst1, dst0}, i32_tensor(from), i32_tensor(to)};
  };
  refuses("dst_slots: expected no source slot of the same pool, got slot 1 at index 0",
          one_pool({0, 1}, {1, 2}));
  refuses("dst_slots: expected no source slot of the same pool, got slot 0 at index 1",
          one_pool({0, 1}, {2, 0}));
  refuses("dst_slots: expected no source slot of the same pool, got slot 3 at index 0",
          one_pool({3}, {3}));
  // A skipped pair claims nothing.
  EXPECT_TRUE(state_copy(one_pool({0, 1, 2}, {3, -1, 4}).params(), {}).ok());
  EXPECT_TRUE(state_copy(one_pool({0, -1}, {3, 0}).params(), {}).ok());
}

TEST_F(StateCopyContract, DuplicatesFarBeyondOneBitmapAreFound) {
  HostTensor big(DType::kU8, {200'000, 1}), small(DType::kU8, {2, 1});
  Planes planes{{small}, {big}, i32_tensor({0, 1, 0}), i32_tensor({199'999, 65'536, 199'999})};
  EXPECT_EQ(state_copy(planes.params(), {}).message(),
            "dst_slots: expected distinct live slots, got slot 199999 again at index 2");
}

}  // namespace
}  // namespace linestate::testing
