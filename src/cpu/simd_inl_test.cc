// The vector vocabulary against the scalar formats and libm, on every instruction set of this CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/element.h"
#include "testing/fill.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd_inl_test.cc"
#include <hwy/foreach_target.h>

#include "cpu/simd_math_inl.h"
#include "cpu/simd_run_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

constexpr int kExp = 0;
constexpr int kSigmoid = 1;

void apply(int f, const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += kVecLanes) {
    const Vec in = vec_load(x + i);
    const Vec out = f == kExp ? vec_exp(in) : f == kSigmoid ? vec_sigmoid(in) : vec_softplus(in);
    vec_store(y + i, out);
  }
}

void widen(const uint16_t* bits, DType dtype, int64_t n, float* out) {
  simd_load_run(bits, dtype, 0, 1, n, out);
}

bool narrow(const float* values, DType dtype, int64_t n, uint16_t* out) {
  return simd_store_run(out, dtype, 0, 1, n, values);
}

float sum_of_group(const float* x) { return group_sum(group_load(x)); }

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(apply);
HWY_EXPORT(widen);
HWY_EXPORT(narrow);
HWY_EXPORT(sum_of_group);

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kExp = 0;
constexpr int kSigmoid = 1;
constexpr int kSoftplus = 2;

// Every instruction set of this CPU in turn.
class SimdInl : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { choose(GetParam()); }
  void TearDown() override { choose(0); }

 private:
  static void choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};
INSTANTIATE_TEST_SUITE_P(Target, SimdInl, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

std::vector<float> run(int f, std::vector<float> x) {
  const size_t n = x.size();
  x.resize((n + 15) / 16 * 16, 0.0f);
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(apply)(f, x.data(), static_cast<int64_t>(x.size()), y.data());
  y.resize(n);
  return y;
}

TEST_P(SimdInl, ExpIsWithinAboutOneUlp) {
  std::vector<float> x;
  for (uint32_t bits = 0x80000000u; bits < std::bit_cast<uint32_t>(-87.3f); bits += 1009) {
    x.push_back(std::bit_cast<float>(bits));
  }
  for (float value = 0.0f; value <= 88.0f; value += 0.001f) x.push_back(value);
  const std::vector<float> y = run(kExp, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    const auto rounded = static_cast<float>(exact);
    const double ulp = static_cast<double>(std::nextafter(rounded, kInf)) - rounded;
    ASSERT_LE(std::fabs(y[i] - exact), 1.1 * ulp) << x[i];
  }
  EXPECT_GT(x.size(), 1'000'000u);
}

TEST_P(SimdInl, ExpAtTheEnds) {
  const std::vector<float> y = run(kExp, {0.0f, -0.0f, -87.3f, std::nextafter(-87.3f, -kInf),
                                          -1e30f, -kInf, kNan, -kNan, 1e30f, kInf});
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_GE(y[2], std::numeric_limits<float>::min());
  for (size_t i = 3; i < 6; ++i) EXPECT_EQ(y[i], 0.0f);
  EXPECT_TRUE(std::isnan(y[6]) && std::isnan(y[7]));
  EXPECT_NEAR(y[8] / std::exp(88.0), 1.0, 2e-7);
  EXPECT_EQ(y[9], y[8]);
}

TEST_P(SimdInl, SigmoidAndSoftplusOnBothSides) {
  std::vector<float> x;
  for (int i = -8000; i <= 8000; ++i) x.push_back(static_cast<float>(i) * 0.01f);
  const std::vector<float> s = run(kSigmoid, x);
  const std::vector<float> p = run(kSoftplus, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double in = x[i];
    ASSERT_NEAR(s[i] / (1.0 / (1.0 + std::exp(-in))), 1.0, 3e-7) << in;
    const double softplus = std::fmax(in, 0.0) + std::log1p(std::exp(-std::fabs(in)));
    ASSERT_NEAR(p[i] / softplus, 1.0, 3e-7) << in;
  }
  const std::vector<float> ends{0.0f, -0.0f, 200.0f, kInf, -200.0f, -kInf, kNan, -kNan};
  const std::vector<float> at = run(kSigmoid, ends);
  EXPECT_EQ(at[0], 0.5f);
  EXPECT_EQ(at[1], 0.5f);
  EXPECT_EQ(at[2], 1.0f);
  EXPECT_EQ(at[3], 1.0f);
  EXPECT_EQ(at[4], 0.0f);
  EXPECT_EQ(at[5], 0.0f);
  EXPECT_TRUE(std::isnan(at[6]) && std::isnan(at[7]));
  const std::vector<float> plus = run(kSoftplus, ends);
  EXPECT_EQ(plus[2], 200.0f);
  EXPECT_EQ(plus[3], kInf);
  EXPECT_EQ(plus[4], 0.0f);
  EXPECT_EQ(plus[5], 0.0f);
  EXPECT_TRUE(std::isnan(plus[6]) && std::isnan(plus[7]));
}

TEST_P(SimdInl, WideningIsTheScalarOneForEveryPattern) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<float> got(bits.size()), want(bits.size());
    HWY_DYNAMIC_DISPATCH(widen)(bits.data(), dtype, 65536, got.data());
    load_run(bits.data(), dtype, 0, 1, 65536, want.data());
    for (size_t i = 0; i < bits.size(); ++i) {
      if (std::isnan(want[i])) {
        ASSERT_TRUE(std::isnan(got[i])) << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << i;
      }
    }
  }
}

TEST_P(SimdInl, RoundingIsTheScalarOneAndSeesOverflow) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0xffff0000u; bits += 4093) {
    values.push_back(std::bit_cast<float>(bits));
  }
  // Ties and their neighbours around every f16 and bf16 of a few binades.
  for (uint32_t step = 0; step < 65536; step += 7) {
    const float f16 = f16_to_f32(static_cast<uint16_t>(step));
    const uint32_t tie = std::bit_cast<uint32_t>(f16) + 0x1000u;
    const uint32_t tie_bf16 = (step << 16) + 0x8000u;
    for (uint32_t bits : {tie - 1, tie, tie + 1, tie_bf16 - 1, tie_bf16, tie_bf16 + 1}) {
      values.push_back(std::bit_cast<float>(bits));
    }
  }
  for (float edge :
       {65519.996f, 65520.0f, -65520.0f, 0x1p-24f, 0x1p-25f, 0x1.8p-24f, kInf, -kInf, kNan}) {
    values.push_back(edge);
  }
  const auto n = static_cast<int64_t>(values.size());
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<uint16_t> got(values.size()), want(values.size());
    HWY_DYNAMIC_DISPATCH(narrow)(values.data(), dtype, n, got.data());
    store_run(want.data(), dtype, 0, 1, n, values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        const float back = dtype == DType::kBF16 ? bf16_to_f32(got[i]) : f16_to_f32(got[i]);
        ASSERT_TRUE(std::isnan(back)) << i;
      } else {
        ASSERT_EQ(got[i], want[i]) << values[i];
      }
    }
  }
  for (float edge : {65519.996f, 65520.0f, -1e30f, kInf, -kInf, kNan}) {
    std::vector<float> one(37, 1.0f);
    std::vector<uint16_t> out(37), scalar(37);
    for (size_t at : {size_t{3}, size_t{36}}) {
      one.assign(37, 1.0f);
      one[at] = edge;
      EXPECT_EQ(HWY_DYNAMIC_DISPATCH(narrow)(one.data(), DType::kF16, 37, out.data()),
                store_run(scalar.data(), DType::kF16, 0, 1, 37, one.data()))
          << edge;
    }
  }
}

TEST_P(SimdInl, GroupSumIsOneFixedTree) {
  testing::Random random(7);
  for (int round = 0; round < 1000; ++round) {
    float x[16], tree[16];
    for (float& value : x) value = static_cast<float>(random.normal());
    for (int i = 0; i < 16; ++i) tree[i] = x[i];
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) tree[i] += tree[i + width];
    }
    ASSERT_EQ(HWY_DYNAMIC_DISPATCH(sum_of_group)(x), tree[0]);
  }
}

}  // namespace
}  // namespace linestate
#endif
