#include "cpu/lanewise_math.h"

#include <gtest/gtest.h>

#include <limits>

namespace linestate {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(LanewiseMath, ExpIsWithinTwoUlp) {
  int64_t values = 0;
  for (uint32_t bits = 0x80000000u; bits <= std::bit_cast<uint32_t>(-87.0f); bits += 401) {
    const float x = std::bit_cast<float>(bits);
    const double exact = std::exp(static_cast<double>(x));
    const auto rounded = static_cast<float>(exact);
    const double ulp = static_cast<double>(std::nextafter(rounded, kInf)) - rounded;
    ASSERT_LE(std::fabs(lanewise_exp_nonpositive(x) - exact), 2.0 * ulp) << x;
    ++values;
  }
  EXPECT_GT(values, 2'000'000);
}

TEST(LanewiseMath, ExpAtTheEnds) {
  EXPECT_EQ(lanewise_exp_nonpositive(0.0f), 1.0f);
  EXPECT_EQ(lanewise_exp_nonpositive(-0.0f), 1.0f);
  EXPECT_GT(lanewise_exp_nonpositive(-87.0f), 0.0f);
  EXPECT_EQ(lanewise_exp_nonpositive(std::nextafter(-87.0f, -kInf)), 0.0f);
  EXPECT_EQ(lanewise_exp_nonpositive(-1e30f), 0.0f);
  EXPECT_EQ(lanewise_exp_nonpositive(-kInf), 0.0f);
  EXPECT_TRUE(std::isnan(lanewise_exp_nonpositive(kNan)));
  EXPECT_TRUE(std::isnan(lanewise_exp_nonpositive(-kNan)));
}

TEST(LanewiseMath, SigmoidOnBothSides) {
  for (int i = -8000; i <= 8000; ++i) {
    const float x = static_cast<float>(i) * 0.01f;
    const double exact = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    ASSERT_NEAR(lanewise_sigmoid(x) / exact, 1.0, 4e-7) << x;
  }
  EXPECT_EQ(lanewise_sigmoid(0.0f), 0.5f);
  EXPECT_EQ(lanewise_sigmoid(-0.0f), 0.5f);
  EXPECT_EQ(lanewise_sigmoid(200.0f), 1.0f);
  EXPECT_EQ(lanewise_sigmoid(kInf), 1.0f);
  EXPECT_EQ(lanewise_sigmoid(-200.0f), 0.0f);
  EXPECT_EQ(lanewise_sigmoid(-kInf), 0.0f);
  EXPECT_TRUE(std::isnan(lanewise_sigmoid(kNan)));
  EXPECT_TRUE(std::isnan(lanewise_sigmoid(-kNan)));
}

}  // namespace
}  // namespace linestate
