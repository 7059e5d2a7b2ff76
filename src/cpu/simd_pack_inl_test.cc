// Packs against groups and the scalar formats, on every instruction set of this CPU.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/element.h"
#include "testing/fill.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd_pack_inl_test.cc"
#include <hwy/foreach_target.h>

#include "cpu/simd_pack_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

template <typename T>
HWY_INLINE void pass(const uint16_t* in, int64_t n, float* wide, uint16_t* out) {
  for (int64_t i = 0; i < n; i += kGroup) {
    const Group pack = pack_load(reinterpret_cast<const T*>(in) + i);
    group_store(wide + i, pack);
    pack_store(reinterpret_cast<T*>(out) + i, pack);
  }
  from_pack_order<T>(wide, n);
}

template <typename T>
HWY_INLINE void round_pack(float* values, int64_t n, uint16_t* out) {
  to_pack_order<T>(values, n);
  for (int64_t i = 0; i < n; i += kGroup) {
    pack_store(reinterpret_cast<T*>(out) + i, group_load(values + i));
  }
}

// Every element widened, and rounded again.
void pack_pass(const uint16_t* in, DType dtype, int64_t n, float* wide, uint16_t* out) {
  dtype == DType::kBF16 ? pass<hwy::bfloat16_t>(in, n, wide, out)
                        : pass<hwy::float16_t>(in, n, wide, out);
}

void pack_round(float* values, DType dtype, int64_t n, uint16_t* out) {
  dtype == DType::kBF16 ? round_pack<hwy::bfloat16_t>(values, n, out)
                        : round_pack<hwy::float16_t>(values, n, out);
}

// Sums of 16 elements, as a pack of bf16 and as a group.
void both_sums(const uint16_t* in, float* sums) {
  const auto* p = reinterpret_cast<const hwy::bfloat16_t*>(in);
  sums[0] = pack_sum<hwy::bfloat16_t>(pack_load(p));
  sums[1] = group_sum(group_load(p));
}

void clear_payloads(float* x, int64_t n) { clear_nan_payload(x, n); }

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(pack_pass);
HWY_EXPORT(pack_round);
HWY_EXPORT(both_sums);
HWY_EXPORT(clear_payloads);

namespace {

// Every instruction set of this CPU in turn.
class SimdPack : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { choose(GetParam()); }
  void TearDown() override { choose(0); }

 private:
  static void choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};
INSTANTIATE_TEST_SUITE_P(Target, SimdPack, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

TEST_P(SimdPack, EveryPatternThereAndBack) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<float> wide(bits.size()), want(bits.size());
    std::vector<uint16_t> back(bits.size());
    HWY_DYNAMIC_DISPATCH(pack_pass)(bits.data(), dtype, 65536, wide.data(), back.data());
    load_run(bits.data(), dtype, 0, 1, 65536, want.data());
    for (size_t i = 0; i < bits.size(); ++i) {
      if (std::isnan(want[i])) {
        ASSERT_TRUE(std::isnan(wide[i])) << i;
        ASSERT_TRUE(std::isnan(dtype == DType::kBF16 ? bf16_to_f32(back[i]) : f16_to_f32(back[i])));
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(want[i])) << i;
        ASSERT_EQ(back[i], bits[i]);
      }
    }
  }
}

TEST_P(SimdPack, RoundingIsTheScalarOne) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0xffff0000u; bits += 4093) {
    values.push_back(std::bit_cast<float>(bits));
  }
  // Ties and their neighbours, so that even and odd ones meet every neighbour in a pair.
  for (uint32_t step = 0; step < 65536; ++step) {
    for (uint32_t low : {0x7fffu, 0x8000u, 0x8001u, 0u, 0xffffu}) {
      values.push_back(std::bit_cast<float>((step << 16) | low));
    }
  }
  values.resize(values.size() / 16 * 16);
  const auto n = static_cast<int64_t>(values.size());
  HWY_DYNAMIC_DISPATCH(clear_payloads)(values.data(), n);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<float> in = values;
    std::vector<uint16_t> got(values.size()), want(values.size());
    HWY_DYNAMIC_DISPATCH(pack_round)(in.data(), dtype, n, got.data());
    store_run(want.data(), dtype, 0, 1, n, values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(dtype == DType::kBF16 ? bf16_to_f32(got[i]) : f16_to_f32(got[i])));
      } else {
        ASSERT_EQ(got[i], want[i]) << values[i];
      }
    }
  }
}

TEST_P(SimdPack, SumIsThatOfTheGroup) {
  testing::Random random(7);
  for (int round = 0; round < 1000; ++round) {
    uint16_t x[16];
    for (uint16_t& value : x) value = f32_to_bf16(static_cast<float>(random.normal()));
    float sums[2];
    HWY_DYNAMIC_DISPATCH(both_sums)(x, sums);
    ASSERT_EQ(sums[0], sums[1]);
  }
}

TEST_P(SimdPack, ClearingPayloadsChangesNansOnly) {
  std::vector<float> x;
  for (uint32_t high = 0; high < 65536; ++high) {
    x.push_back(std::bit_cast<float>((high << 16) | (high * 40503u & 0xffffu)));
  }
  std::vector<float> got = x;
  HWY_DYNAMIC_DISPATCH(clear_payloads)(got.data(), 65536);
  int64_t nans = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), 0x7fc00000u);
      ++nans;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(x[i]));
    }
  }
  EXPECT_GT(nans, 200);
}

}  // namespace
}  // namespace linestate
#endif
