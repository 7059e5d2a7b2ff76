// The library's 16-bit formats against the definition of the formats (testing/half).
#include "base/float_bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/element.h"
#include "testing/fill.h"
#include "testing/half.h"

namespace linestate {
namespace {

using testing::load_f64;
using testing::round_to;

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

TEST(FloatBits, WideningIsExactForEveryPattern) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    ASSERT_TRUE(same(f16_to_f32(half), load_f64(&half, DType::kF16, 0))) << bits;
    ASSERT_TRUE(same(bf16_to_f32(half), load_f64(&half, DType::kBF16, 0))) << bits;
  }
}

TEST(FloatBits, NarrowingRoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (!std::isnan(f16_to_f32(half))) {
      ASSERT_EQ(f32_to_f16(f16_to_f32(half)), half);
    }
    if (!std::isnan(bf16_to_f32(half))) {
      ASSERT_EQ(f32_to_bf16(bf16_to_f32(half)), half);
    }
  }
}

// Every midpoint between neighbours, and one f32 step to either side: ties go to even.
TEST(FloatBits, NarrowingRoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float low = f16_to_f32(static_cast<uint16_t>(bits));
    const float high = bits == 0x7bff ? 65536.0f : f16_to_f32(static_cast<uint16_t>(bits + 1));
    const float middle = 0.5f * (low + high);
    for (float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      ASSERT_TRUE(same(f16_to_f32(f32_to_f16(value)), round_to(DType::kF16, value))) << value;
      ASSERT_TRUE(same(f16_to_f32(f32_to_f16(-value)), round_to(DType::kF16, -value))) << value;
    }
  }
  testing::Random random(7);
  for (int i = 0; i < 200000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
    if (std::isnan(value)) continue;
    ASSERT_TRUE(same(bf16_to_f32(f32_to_bf16(value)), round_to(DType::kBF16, value))) << value;
    ASSERT_TRUE(same(f16_to_f32(f32_to_f16(value)), round_to(DType::kF16, value))) << value;
  }
}

TEST(FloatBits, NanStaysNan) {
  for (uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0x7fc00000u}) {
    const auto nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(nan)))) << bits;
    EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(nan)))) << bits;
  }
}

TEST(Element, StoreRunReportsOverflowOfFiniteValuesOnly) {
  uint16_t out[3];
  const float fits[3] = {1.0f, 65504.0f, -65519.0f};
  EXPECT_TRUE(store_run(out, DType::kF16, 0, 1, 3, fits));
  const float too_large[3] = {1.0f, 65520.0f, 0.0f};
  EXPECT_FALSE(store_run(out, DType::kF16, 0, 1, 3, too_large));
  const float infinite[1] = {std::numeric_limits<float>::infinity()};
  EXPECT_TRUE(store_run(out, DType::kF16, 0, 1, 1, infinite));
}

TEST(Element, RunsHonourStrides) {
  float memory[12] = {};
  const float values[3] = {1.5f, -2.0f, 3.0f};
  store_run(memory, DType::kF32, 1, 4, 3, values);
  EXPECT_EQ(memory[1], 1.5f);
  EXPECT_EQ(memory[5], -2.0f);
  EXPECT_EQ(memory[9], 3.0f);
  float back[3];
  load_run(memory, DType::kF32, 1, 4, 3, back);
  EXPECT_EQ(back[2], 3.0f);
  EXPECT_EQ(memory[0] + memory[2] + memory[4], 0.0f);
}

}  // namespace
}  // namespace linestate
