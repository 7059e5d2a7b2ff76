#include "cli/replay/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "testing/compare.h"
#include "testing/fill.h"

namespace linestate::cli {
namespace {

using testing::HostTensor;

constexpr int64_t kTokens = 400;

std::vector<TokenAt> some_tokens() {
  std::vector<TokenAt> tokens;
  for (int64_t p = 0; p < kTokens; ++p) {
    tokens.push_back({testing::hash64(static_cast<uint64_t>(p) + 99), p});
  }
  return tokens;
}

LayerSpec kda_layer(KdaGate gate) {
  LayerSpec layer;
  layer.kind = LayerKind::kKda;
  layer.layer_id = 0;
  layer.heads = {4, 8, 32, 32};
  layer.gate_form = gate;
  layer.lower_bound = gate == KdaGate::kBounded ? -5.0f : 0.0f;
  return layer;
}

LayerSpec lightning_layer() {
  LayerSpec layer;
  layer.kind = LayerKind::kLightning;
  layer.layer_id = 1;
  layer.heads = {8, 8, 32, 32};
  layer.norm_groups = 4;
  return layer;
}

HostTensor values_of(const ChannelPlan& plan) {
  HostTensor out(DType::kF32, {kTokens, plan.channels()});
  fill_tokens(plan, some_tokens(), out, 1);
  return out;
}

// Log decays [tokens, HV, K] written straight from the definition of the gates.
std::vector<double> log_decays(const LayerSpec& layer, Profile profile) {
  const auto activations = make_activations(layer, {}, profile, 1);
  const auto weights = make_weights(layer, 4, {}, profile, 1);
  EXPECT_TRUE(activations.ok() && weights.ok());
  const HostTensor gate = values_of(activations->tensors[1]);
  const int64_t dim = layer.heads.k_dim;
  const int64_t channels = layer.heads.num_value_heads * dim;
  std::vector<double> out;
  for (int64_t i = 0; i < kTokens * channels; ++i) {
    const int64_t c = i % channels;
    if (layer.gate_form == KdaGate::kActivated) {
      out.push_back(gate.at(i));
      continue;
    }
    const double rate = std::exp(weights->A_log.at(c / dim));
    const double x = gate.at(i) + weights->dt_bias.at(c);
    out.push_back(layer.gate_form == KdaGate::kBounded
                      ? layer.lower_bound / (1.0 + std::exp(-rate * x))
                      : -rate * std::log1p(std::exp(x)));
  }
  return out;
}

TEST(Profile, Names) {
  for (const char* name : {"plain", "correlated", "slow", "strong", "mixed"}) {
    const auto profile = parse_profile(name);
    ASSERT_TRUE(profile.ok());
    EXPECT_EQ(profile_name(*profile), name);
  }
  const auto bad = parse_profile("fast");
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.status().message().find("plain, correlated, slow, strong, mixed, got fast"),
            std::string::npos);
}

TEST(Profile, SlowRetainsMoreThan999PerThousand) {
  for (const KdaGate gate : {KdaGate::kSoftplus, KdaGate::kBounded, KdaGate::kActivated}) {
    for (const double g : log_decays(kda_layer(gate), Profile::kSlow)) {
      ASSERT_GT(std::exp(g), 0.999);
      ASSERT_LT(g, 0.0);
    }
  }
}

TEST(Profile, StrongIsBelowMinus50OrNearTheBound) {
  for (const KdaGate gate : {KdaGate::kSoftplus, KdaGate::kBounded, KdaGate::kActivated}) {
    const std::vector<double> g = log_decays(kda_layer(gate), Profile::kStrong);
    const double limit = gate == KdaGate::kBounded ? -5.0 * 0.98 : -50.0;
    for (size_t i = 0; i < g.size(); ++i) {
      if (i % 4 == 3) {
        ASSERT_GT(g[i], limit) << "one channel of four keeps its memory";
      } else {
        ASSERT_LT(g[i], limit);
      }
    }
  }
}

TEST(Profile, PlainDecaysAreModerate) {
  for (const KdaGate gate : {KdaGate::kSoftplus, KdaGate::kBounded}) {
    const std::vector<double> g = log_decays(kda_layer(gate), Profile::kPlain);
    double mean = 0.0;
    for (const double x : g) {
      ASSERT_LT(x, 0.0);
      mean += std::exp(x) / static_cast<double>(g.size());
    }
    EXPECT_GT(mean, 0.5);
    EXPECT_LT(mean, 0.99);
  }
}

double key_cosine(const HostTensor& values, int64_t channels, int64_t begin, int64_t dim) {
  double mean = 0.0;
  for (int64_t t = 0; t + 1 < kTokens; ++t) {
    double dot = 0.0;
    double a = 0.0;
    double b = 0.0;
    for (int64_t c = begin; c < begin + dim; ++c) {
      const double x = values.at(t * channels + c);
      const double y = values.at((t + 1) * channels + c);
      dot += x * y;
      a += x * x;
      b += y * y;
    }
    mean += dot / std::sqrt(a * b) / (kTokens - 1);
  }
  return mean;
}

TEST(Profile, CorrelatedKeysCluster) {
  for (const LayerSpec& layer : {kda_layer(KdaGate::kSoftplus), lightning_layer()}) {
    const bool kda = layer.kind == LayerKind::kKda;
    const size_t tensor = kda ? 0 : 1;
    const int64_t dim = layer.heads.k_dim;
    const int64_t first = kda ? layer.heads.num_heads * dim : 0;
    for (const Profile profile : {Profile::kPlain, Profile::kCorrelated, Profile::kMixed}) {
      const auto activations = make_activations(layer, {}, profile, 1);
      ASSERT_TRUE(activations.ok());
      const ChannelPlan& plan = activations->tensors[tensor];
      const HostTensor values = values_of(plan);
      for (int64_t head = 0; head < layer.heads.num_heads; ++head) {
        const double cosine = key_cosine(values, plan.channels(), first + head * dim, dim);
        if (keys_correlated(profile, layer.layer_id, head)) {
          EXPECT_GT(cosine, 0.85);
        } else {
          EXPECT_LT(std::fabs(cosine), 0.1);
        }
      }
    }
  }
}

TEST(Profile, CorrelatedBetaIsNearOne) {
  const LayerSpec layer = kda_layer(KdaGate::kSoftplus);
  const auto activations = make_activations(layer, {}, Profile::kCorrelated, 1);
  ASSERT_TRUE(activations.ok());
  const HostTensor beta = values_of(activations->tensors[2]);
  for (int64_t i = 0; i < beta.num_elements(); ++i) {
    ASSERT_GT(1.0 / (1.0 + std::exp(-beta.at(i))), 0.9);
  }
}

TEST(Profile, MixedTakesEveryStyleInTurn) {
  for (const GateStyle style : {GateStyle::kPlain, GateStyle::kSlow, GateStyle::kStrong}) {
    int64_t count = 0;
    for (int64_t head = 0; head < 6; ++head) {
      count += gate_style(Profile::kMixed, 0, head) == style ? 1 : 0;
    }
    EXPECT_EQ(count, 2);
  }
  EXPECT_NE(keys_correlated(Profile::kMixed, 0, 0), keys_correlated(Profile::kMixed, 0, 1));
}

// Channels of `rank` of 2 within the last dimension of a whole tensor made of equal blocks.
ConstTensorView rank_part(const HostTensor& whole, int dim, int64_t rank) {
  const ConstTensorView view = whole.view();
  const int64_t half = view.shape[dim] / 2;
  return view.slice(dim, rank * half, (rank + 1) * half);
}

TEST(Profile, RanksSeeSlicesOfTheWholeModel) {
  for (const LayerSpec& layer :
       {kda_layer(KdaGate::kSoftplus), kda_layer(KdaGate::kBounded), lightning_layer()}) {
    const bool kda = layer.kind == LayerKind::kKda;
    const auto whole = make_activations(layer, {}, Profile::kMixed, 7);
    const auto whole_weights = make_weights(layer, 4, {}, Profile::kMixed, 7);
    ASSERT_TRUE(whole.ok() && whole_weights.ok());
    for (int32_t rank = 0; rank < 2; ++rank) {
      const auto part = make_activations(layer, {rank, 2}, Profile::kMixed, 7);
      const auto weights = make_weights(layer, 4, {rank, 2}, Profile::kMixed, 7);
      ASSERT_TRUE(part.ok() && weights.ok());
      for (size_t i = kda ? 1 : 0; i < 4; ++i) {
        const HostTensor all = values_of(whole->tensors[i]);
        EXPECT_EQ(testing::bit_difference(values_of(part->tensors[i]), rank_part(all, 1, rank)),
                  "");
      }
      if (!kda) {
        EXPECT_EQ(
            testing::bit_difference(weights->slopes, rank_part(whole_weights->slopes, 0, rank)),
            "");
        EXPECT_EQ(testing::bit_difference(weights->norm_weight,
                                          rank_part(whole_weights->norm_weight, 0, rank)),
                  "");
        continue;
      }
      EXPECT_EQ(testing::bit_difference(weights->A_log, rank_part(whole_weights->A_log, 0, rank)),
                "");
      EXPECT_EQ(
          testing::bit_difference(weights->dt_bias, rank_part(whole_weights->dt_bias, 0, rank)),
          "");
      EXPECT_EQ(testing::bit_difference(weights->norm_weight, whole_weights->norm_weight), "");
      // q | k | v: each block is cut by itself.
      const HostTensor all = values_of(whole->tensors[0]);
      const HostTensor mine = values_of(part->tensors[0]);
      const int64_t key = layer.heads.num_heads * layer.heads.k_dim;
      const int64_t value = layer.heads.num_value_heads * layer.heads.v_dim;
      const int64_t whole_begin[3] = {0, key, 2 * key};
      const int64_t sizes[3] = {key / 2, key / 2, value / 2};
      int64_t at = 0;
      for (int block = 0; block < 3; ++block) {
        const int64_t from = whole_begin[block] + rank * sizes[block];
        EXPECT_EQ(testing::bit_difference(mine.view().slice(1, at, at + sizes[block]),
                                          all.view().slice(1, from, from + sizes[block])),
                  "");
        EXPECT_EQ(testing::bit_difference(
                      weights->conv_weight.view().slice(0, at, at + sizes[block]),
                      whole_weights->conv_weight.view().slice(0, from, from + sizes[block])),
                  "");
        at += sizes[block];
      }
    }
  }
}

TEST(Profile, ShardThatDoesNotDivideIsRefused) {
  const auto part = make_activations(kda_layer(KdaGate::kSoftplus), {0, 3}, Profile::kPlain, 0);
  ASSERT_FALSE(part.ok());
  EXPECT_EQ(part.status().code(), StatusCode::kInvalidArgument);
}

TEST(Profile, LayersDiffer) {
  LayerSpec layer = kda_layer(KdaGate::kSoftplus);
  const auto first = make_activations(layer, {}, Profile::kPlain, 0);
  layer.layer_id = 1;
  const auto second = make_activations(layer, {}, Profile::kPlain, 0);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(testing::bit_difference(values_of(first->tensors[0]), values_of(second->tensors[0])),
            "");
}

}  // namespace
}  // namespace linestate::cli
