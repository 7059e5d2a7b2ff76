#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "linestate/ops/lightning.h"

namespace linestate {
namespace {

TEST(LightningSlopes, PowerOfTwoFollowsTheFormula) {
  const auto slopes = lightning_slopes(8, 0, 24);
  ASSERT_TRUE(slopes.ok());
  const float factor = static_cast<float>(1.0 + 1e-5);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ((*slopes)[static_cast<size_t>(i)], std::ldexp(1.0f, -(i + 1)) * factor) << i;
  }
}

TEST(LightningSlopes, OtherCountsTakeEveryOtherSlopeOfTheNextPower) {
  const auto twelve = lightning_slopes(12, 0, 24);
  const auto eight = lightning_slopes(8, 0, 24);
  const auto sixteen = lightning_slopes(16, 0, 24);
  ASSERT_TRUE(twelve.ok() && eight.ok() && sixteen.ok());
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ((*twelve)[i], (*eight)[i]);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ((*twelve)[8 + i], (*sixteen)[2 * i]);
}

TEST(LightningSlopes, LayerRulesDifferByWhatIsDocumented) {
  const int64_t layers = 24;
  const auto at = [&](int64_t layer, SlopeRule rule) {
    return static_cast<double>((*lightning_slopes(1, layer, layers, {}, rule))[0]) * 256.0;
  };
  for (int64_t l : {0, 1, 7, 23}) {
    const auto x = static_cast<double>(l);
    EXPECT_NEAR(at(l, SlopeRule::kLayerOverLast), 1.0 - x / 23.0 + 1e-5, 1e-7) << l;
    EXPECT_NEAR(at(l, SlopeRule::kLayerOverLastPlusEps), 1.0 - x / (23.0 + 1e-5) + 1e-5, 1e-7) << l;
    EXPECT_NEAR(at(l, SlopeRule::kPreviousLayer), 1.0 - std::fmax(x - 1.0, 0.0) / 23.0 + 1e-5, 1e-7)
        << l;
  }
  EXPECT_EQ(at(1, SlopeRule::kPreviousLayer), at(0, SlopeRule::kLayerOverLast));
  for (SlopeRule rule :
       {SlopeRule::kLayerOverLast, SlopeRule::kLayerOverLastPlusEps, SlopeRule::kPreviousLayer}) {
    EXPECT_EQ((*lightning_slopes(1, 0, 1, {}, rule))[0],
              static_cast<float>(1.0 + 1e-5) * (1.0f / 256.0f));
  }
}

// Bits of the public golden file (keys n<heads>_L<layers>_tp<size>).
TEST(LightningSlopes, BitsOfTheGoldenFile) {
  struct Case {
    int64_t heads, layer, layers;
    TpShard shard;
    size_t index;
    uint32_t bits;
  };
  const Case cases[] = {
      {64, 0, 24, {0, 1}, 0, 0x3f6ac161u},   {64, 39, 80, {3, 4}, 15, 0x3b019f71u},
      {12, 11, 24, {1, 2}, 5, 0x3d3ce4b3u},  {20, 1, 24, {0, 1}, 19, 0x3e919a12u},
      {80, 78, 80, {1, 2}, 30, 0x3bec5cd9u}, {96, 23, 24, {3, 4}, 23, 0x352f3337u},
      {80, 0, 1, {0, 1}, 79, 0x3e85ab1bu},   {40, 40, 80, {1, 2}, 19, 0x3e09d226u},
      {48, 22, 24, {2, 4}, 7, 0x393220bfu},  {1, 1, 2, {0, 1}, 0, 0x3327c5acu},
  };
  for (const Case& c : cases) {
    const auto slopes = lightning_slopes(c.heads, c.layer, c.layers, c.shard);
    ASSERT_TRUE(slopes.ok());
    EXPECT_EQ(std::bit_cast<uint32_t>((*slopes)[c.index]), c.bits)
        << c.heads << " heads, layer " << c.layer << " of " << c.layers;
  }
}

TEST(LightningSlopes, RanksConcatenateToTheWhole) {
  for (int64_t heads : {8, 12, 20, 64, 80}) {
    const auto whole = lightning_slopes(heads, 7, 24);
    for (int32_t size : {1, 2, 4}) {
      std::vector<float> joined;
      for (int32_t rank = 0; rank < size; ++rank) {
        const auto part = lightning_slopes(heads, 7, 24, {rank, size});
        ASSERT_TRUE(part.ok());
        joined.insert(joined.end(), part->begin(), part->end());
      }
      EXPECT_EQ(joined, *whole) << heads << " over " << size;
    }
  }
}

TEST(LightningSlopes, RefusesByName) {
  EXPECT_EQ(lightning_slopes(0, 0, 1).status().message(), "num_heads: expected at least 1, got 0");
  EXPECT_EQ(lightning_slopes(8, 24, 24).status().message(), "layer: expected 0 to 23, got 24");
  EXPECT_EQ(lightning_slopes(8, -1, 24).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(lightning_slopes(8, 0, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(lightning_slopes(6, 0, 4, {0, 4}).status().message(),
            "num_heads: expected a multiple of the tp size 4, got 6");
}

TEST(LightningVariants, NamesAndScales) {
  EXPECT_EQ(*parse_lightning_variant("seg_la"), LightningVariant::kSegLa);
  EXPECT_EQ(*parse_lightning_variant("minimax"), LightningVariant::kMinimax);
  for (LightningVariant v : {LightningVariant::kSegLa, LightningVariant::kMinimax}) {
    EXPECT_EQ(*parse_lightning_variant(lightning_variant_name(v)), v);
  }
  EXPECT_EQ(parse_lightning_variant("lightning").status().message(),
            "lightning variant: expected one of seg_la, minimax, got lightning");
  EXPECT_EQ(lightning_scale(LightningVariant::kSegLa, 64), 0.125f);
  EXPECT_EQ(lightning_scale(LightningVariant::kSegLa, 128), 0.088388346f);
  EXPECT_EQ(lightning_scale(LightningVariant::kMinimax, 128), 1.0f);
}

}  // namespace
}  // namespace linestate
