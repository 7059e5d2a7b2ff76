#include "cli/replay/activations.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "cli/replay/half_floats.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/half.h"
#include "testing/host_tensor.h"

namespace linestate::cli {
namespace {

using testing::HostTensor;

ChannelPlan plain_plan(int64_t begin, int64_t end, uint64_t stream = 5) {
  ChannelPlan plan;
  plan.stream = stream;
  for (int64_t c = begin; c < end; ++c) plan.add(c, 0.0f, 1.0f);
  return plan;
}

std::vector<TokenAt> some_tokens(int64_t count, int64_t first = 0) {
  std::vector<TokenAt> tokens;
  for (int64_t p = first; p < first + count; ++p) {
    tokens.push_back({testing::hash64(static_cast<uint64_t>(p)), p});
  }
  return tokens;
}

HostTensor filled(const ChannelPlan& plan, const std::vector<TokenAt>& tokens, DType dtype,
                  int threads = 1) {
  HostTensor out(dtype, {static_cast<int64_t>(tokens.size()), plan.channels()});
  fill_tokens(plan, tokens, out, threads);
  return out;
}

TEST(Activations, NearlyStandardNormal) {
  const HostTensor values = filled(plain_plan(0, 700), some_tokens(300), DType::kF32);
  double sum = 0.0;
  double squares = 0.0;
  double fourths = 0.0;
  const int64_t n = values.num_elements();
  for (int64_t i = 0; i < n; ++i) {
    const double x = values.at(i);
    EXPECT_LE(std::fabs(x), 3.5);
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
  }
  EXPECT_NEAR(sum / n, 0.0, 0.01);
  EXPECT_NEAR(squares / n, 1.0, 0.01);
  EXPECT_NEAR(fourths / n, 2.7, 0.05);  // four uniforms; a normal has 3
}

TEST(Activations, TokensAndChannelsAreUncorrelated) {
  const HostTensor values = filled(plain_plan(0, 512), some_tokens(256), DType::kF32);
  double next_token = 0.0;
  double next_channel = 0.0;
  for (int64_t t = 0; t + 1 < 256; ++t) {
    for (int64_t c = 0; c + 1 < 512; ++c) {
      next_token += values.at(t * 512 + c) * values.at((t + 1) * 512 + c);
      next_channel += values.at(t * 512 + c) * values.at(t * 512 + c + 1);
    }
  }
  EXPECT_NEAR(next_token / (255.0 * 511.0), 0.0, 0.015);
  EXPECT_NEAR(next_channel / (255.0 * 511.0), 0.0, 0.015);
}

TEST(Activations, DependOnTokenPositionAndStreamOnly) {
  const std::vector<TokenAt> tokens = some_tokens(40);
  const HostTensor whole = filled(plain_plan(0, 300), tokens, DType::kBF16);
  const std::vector<TokenAt> tail(tokens.begin() + 13, tokens.end());
  const HostTensor part = filled(plain_plan(0, 300), tail, DType::kBF16, 2);
  EXPECT_EQ(testing::bit_difference(part, whole.view().slice(0, 13, 40)), "");
  std::vector<TokenAt> moved = tokens;
  for (TokenAt& token : moved) ++token.position;
  EXPECT_NE(testing::bit_difference(filled(plain_plan(0, 300), moved, DType::kBF16), whole), "");
  EXPECT_NE(testing::bit_difference(filled(plain_plan(0, 300, 6), tokens, DType::kBF16), whole),
            "");
}

TEST(Activations, SliceOfChannelsIsSliceOfWhole) {
  const std::vector<TokenAt> tokens = some_tokens(20);
  const HostTensor whole = filled(plain_plan(0, 600), tokens, DType::kF16);
  const HostTensor part = filled(plain_plan(300, 600), tokens, DType::kF16);
  EXPECT_EQ(testing::bit_difference(part, testing::copy_of(whole.view().slice(1, 300, 600))), "");
}

TEST(Activations, StreamsDiffer) {
  EXPECT_NE(stream_of(0, 1, 2), stream_of(0, 2, 1));
  EXPECT_NE(stream_of(0, 1, 2), stream_of(1, 1, 2));
  EXPECT_EQ(stream_of(3, 1, 2), stream_of(3, 1, 2));
}

TEST(HalfFloats, AgreeWithTheFormats) {
  testing::Random random(3);
  for (int i = 0; i < 200000; ++i) {
    const auto value = static_cast<float>(random.normal() * std::exp2(random.uniform(-28, 10)));
    EXPECT_EQ(static_cast<double>(rounded(value, DType::kBF16)),
              testing::round_to(DType::kBF16, value));
    EXPECT_EQ(static_cast<double>(rounded(value, DType::kF16)),
              testing::round_to(DType::kF16, value));
  }
}

TEST(HalfFloats, WidenEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const double f16 = testing::load_f64(&half, DType::kF16, 0);
    const double bf16 = testing::load_f64(&half, DType::kBF16, 0);
    if (std::isnan(f16)) {
      EXPECT_TRUE(std::isnan(widen_f16(half)));
    } else {
      EXPECT_EQ(static_cast<double>(widen_f16(half)), f16);
    }
    if (!std::isnan(bf16)) {
      EXPECT_EQ(static_cast<double>(widen_bf16(half)), bf16);
    }
  }
}

}  // namespace
}  // namespace linestate::cli
