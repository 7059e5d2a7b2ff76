#include "linestate/model_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

namespace linestate {
namespace {

ModelConfig preset(const char* name) {
  Result<ModelConfig> model = model_preset(name);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return model.ok() ? *model : ModelConfig{};
}

std::set<int32_t> ids(const ModelConfig& model) {
  std::set<int32_t> out;
  for (const LayerSpec& layer : model.linear_layers) out.insert(layer.layer_id);
  return out;
}

TEST(ModelPresets, EveryNameGivesAValidModelOfThatName) {
  const std::vector<std::string> names = model_preset_names();
  EXPECT_EQ(names, (std::vector<std::string>{"tiny", "kimi-linear", "kimi-k3", "glm-5.3-flash",
                                             "minimax-01", "ring-mini", "ring-flash"}));
  for (const std::string& name : names) {
    const ModelConfig model = preset(name.c_str());
    EXPECT_EQ(model.name, name);
    EXPECT_EQ(validate(model).to_string(), "ok");
  }
}

TEST(ModelPresets, UnknownNameListsTheKnownOnes) {
  const Status status = model_preset("kimi").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "model: expected one of tiny, kimi-linear, kimi-k3, glm-5.3-flash, minimax-01, "
            "ring-mini, ring-flash, got kimi");
}

TEST(ModelPresets, CountsOfLinearLayers) {
  struct Case {
    const char* name;
    size_t linear;
    int32_t all;
    HeadShape heads;
  };
  const Case cases[] = {
      {"kimi-linear", 20, 27, {32, 32, 128, 128}},   {"kimi-k3", 69, 93, {96, 96, 128, 128}},
      {"glm-5.3-flash", 34, 45, {64, 64, 128, 128}}, {"minimax-01", 70, 80, {64, 64, 128, 128}},
      {"ring-mini", 16, 20, {16, 16, 128, 128}},     {"ring-flash", 28, 32, {32, 32, 128, 128}},
  };
  for (const Case& c : cases) {
    const ModelConfig model = preset(c.name);
    EXPECT_EQ(model.linear_layers.size(), c.linear) << c.name;
    EXPECT_EQ(model.num_layers, c.all) << c.name;
    for (const LayerSpec& layer : model.linear_layers) EXPECT_EQ(layer.heads, c.heads) << c.name;
  }
}

TEST(ModelPresets, KimiLinearLeavesOutTheSevenSoftmaxLayers) {
  std::set<int32_t> expected;
  for (int32_t id = 0; id < 27; ++id) expected.insert(id);
  for (int32_t one_based : {4, 8, 12, 16, 20, 24, 27}) expected.erase(one_based - 1);
  EXPECT_EQ(ids(preset("kimi-linear")), expected);
}

TEST(ModelPresets, SoftmaxLayersEndEachGroup) {
  const std::set<int32_t> minimax = ids(preset("minimax-01"));
  const std::set<int32_t> mini = ids(preset("ring-mini"));
  for (int32_t id = 0; id < 80; ++id) EXPECT_EQ(minimax.count(id), id % 8 == 7 ? 0u : 1u) << id;
  for (int32_t id = 0; id < 20; ++id) EXPECT_EQ(mini.count(id), id % 5 == 4 ? 0u : 1u) << id;
}

TEST(ModelPresets, GatesVariantsAndRules) {
  for (const char* name : {"kimi-k3", "glm-5.3-flash"}) {
    const LayerSpec layer = preset(name).linear_layers[0];
    EXPECT_EQ(layer.kind, LayerKind::kKda);
    EXPECT_EQ(layer.gate_form, KdaGate::kBounded);
    EXPECT_EQ(layer.lower_bound, -5.0f);
    EXPECT_EQ(layer.conv_width, 4);
  }
  EXPECT_EQ(preset("kimi-linear").linear_layers[0].gate_form, KdaGate::kSoftplus);
  EXPECT_EQ(preset("kimi-linear").linear_layers[0].conv_channels(), 3 * 32 * 128);

  const LayerSpec minimax = preset("minimax-01").linear_layers[0];
  EXPECT_EQ(minimax.kind, LayerKind::kLightning);
  EXPECT_EQ(minimax.variant, LightningVariant::kMinimax);
  EXPECT_EQ(minimax.slope_rule, SlopeRule::kLayerOverLastPlusEps);
  EXPECT_EQ(minimax.whole_group_channels(), 8192);
  EXPECT_EQ(minimax.conv_channels(), 0);
  const LayerSpec ring = preset("ring-mini").linear_layers[0];
  EXPECT_EQ(ring.variant, LightningVariant::kSegLa);
  EXPECT_EQ(ring.slope_rule, SlopeRule::kPreviousLayer);
  EXPECT_EQ(ring.norm_groups, 4);
}

TEST(ModelPresets, TinyDrivesBothBackendsAndShardsOverTwoRanks) {
  const ModelConfig model = preset("tiny");
  ASSERT_EQ(model.linear_layers.size(), 5u);
  const HeadShape kda{2, 4, 64, 64};
  const HeadShape lightning{2, 2, 64, 64};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(model.linear_layers[i].heads, i < 3 ? kda : lightning) << i;
    EXPECT_EQ(model.linear_layers[i].layer_id, i);
  }
  EXPECT_EQ(model.linear_layers[0].lower_bound, -5.0f);
  EXPECT_EQ(model.linear_layers[1].lower_bound, -5.0f);
  EXPECT_EQ(model.linear_layers[2].gate_form, KdaGate::kSoftplus);
  EXPECT_EQ(model.linear_layers[3].variant, LightningVariant::kSegLa);
  EXPECT_EQ(model.linear_layers[4].variant, LightningVariant::kMinimax);

  const Result<ModelConfig> half = shard_model(model, {1, 2});
  ASSERT_TRUE(half.ok()) << half.status().to_string();
  EXPECT_EQ(half->linear_layers[0].heads, (HeadShape{1, 2, 64, 64}));
  EXPECT_EQ(half->linear_layers[3].heads, (HeadShape{1, 1, 64, 64}));
  EXPECT_EQ(half->linear_layers[3].norm_groups, 1);
  EXPECT_FALSE(half->linear_layers[3].norm_spans_ranks());
  EXPECT_EQ(validate(*half).to_string(), "ok");
}

TEST(ShardLayer, KeepsAGroupThatSpansRanksAndItsFullSize) {
  const LayerSpec whole = preset("minimax-01").linear_layers[0];
  EXPECT_FALSE(whole.norm_spans_ranks());
  const Result<LayerSpec> local = shard_layer(whole, {3, 8});
  ASSERT_TRUE(local.ok()) << local.status().to_string();
  EXPECT_EQ(local->heads, (HeadShape{8, 8, 128, 128}));
  EXPECT_EQ(local->norm_groups, 1);
  EXPECT_EQ(local->norm_group_channels, 8192);
  EXPECT_EQ(local->out_channels(), 1024);
  EXPECT_TRUE(local->norm_spans_ranks());
  EXPECT_EQ(validate(*local).to_string(), "ok");
  EXPECT_FALSE(shard_layer(whole, {0, 1})->norm_spans_ranks());
}

TEST(ShardLayer, DividesNormGroups) {
  const LayerSpec whole = preset("ring-mini").linear_layers[0];
  for (int32_t size : {1, 2, 4}) {
    const Result<LayerSpec> local = shard_layer(whole, {size - 1, size});
    ASSERT_TRUE(local.ok()) << local.status().to_string();
    EXPECT_EQ(local->norm_groups, 4 / size);
    EXPECT_EQ(local->norm_group_channels, 512);
    EXPECT_FALSE(local->norm_spans_ranks());
  }
  const Status status = shard_layer(whole, {0, 8}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "norm_groups: expected a multiple of the tp size 8, got 4");
}

TEST(ShardLayer, RefusesHeadsByName) {
  LayerSpec layer = preset("tiny").linear_layers[0];
  EXPECT_EQ(shard_layer(layer, {0, 4}).status().message(),
            "num_heads: expected a multiple of the tp size 4, got 2");
  EXPECT_EQ(shard_layer(layer, {2, 2}).status().code(), StatusCode::kInvalidArgument);
  const Status model = shard_model(preset("tiny"), {0, 4}).status();
  EXPECT_EQ(model.message(),
            "tiny: linear_layers[0] (layer_id 0): num_heads: expected a multiple of the tp size 4, "
            "got 2");
}

TEST(Validate, NamesTheFieldThatBreaksItsRule) {
  struct Case {
    const char* field;
    int layer;  // of tiny
    std::function<void(LayerSpec&)> spoil;
  };
  const Case cases[] = {
      {"layer_id", 0, [](LayerSpec& l) { l.layer_id = -1; }},
      {"num_heads", 0, [](LayerSpec& l) { l.heads.num_heads = 0; }},
      {"num_value_heads", 0, [](LayerSpec& l) { l.heads.num_value_heads = 3; }},
      {"k_dim", 0, [](LayerSpec& l) { l.heads.k_dim = 24; }},
      {"v_dim", 0, [](LayerSpec& l) { l.heads.v_dim = 272; }},
      {"conv_width", 0, [](LayerSpec& l) { l.conv_width = 5; }},
      {"lower_bound", 0, [](LayerSpec& l) { l.lower_bound = 0.0f; }},
      {"lower_bound", 2, [](LayerSpec& l) { l.lower_bound = -5.0f; }},
      {"norm_eps", 0, [](LayerSpec& l) { l.norm_eps = 0.0f; }},
      {"num_value_heads", 3, [](LayerSpec& l) { l.heads.num_value_heads = 4; }},
      {"v_dim", 3, [](LayerSpec& l) { l.heads.v_dim = 128; }},
      {"norm_groups", 3, [](LayerSpec& l) { l.norm_groups = 3; }},
      {"norm_groups", 3, [](LayerSpec& l) { l.norm_groups = 0; }},
      {"norm_group_channels", 3, [](LayerSpec& l) { l.norm_group_channels = 128; }},
      {"norm_group_channels", 3, [](LayerSpec& l) { l.norm_group_channels = -64; }},
  };
  for (const Case& c : cases) {
    LayerSpec layer = preset("tiny").linear_layers[c.layer];
    ASSERT_TRUE(validate(layer).ok());
    c.spoil(layer);
    const Status status = validate(layer);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.field;
    EXPECT_EQ(status.message().rfind(std::string(c.field) + ": expected", 0), 0u)
        << status.message();
    EXPECT_EQ(shard_layer(layer, {0, 1}).status().message(), status.message());
  }
}

TEST(Validate, ModelOrderAndRange) {
  ModelConfig model = preset("tiny");
  model.linear_layers[1].layer_id = 0;
  EXPECT_EQ(validate(model).message(),
            "tiny: linear_layers[1] (layer_id 0): layer_id: expected 1 to 5, got 0");
  model = preset("tiny");
  model.num_layers = 4;
  EXPECT_EQ(validate(model).code(), StatusCode::kInvalidArgument);
  model.num_layers = 0;
  EXPECT_EQ(validate(model).code(), StatusCode::kInvalidArgument);
  model = preset("tiny");
  model.linear_layers.clear();
  EXPECT_EQ(validate(model).code(), StatusCode::kInvalidArgument);
}

TEST(LimitLayers, KeepsTheFirst) {
  const ModelConfig model = preset("tiny");
  EXPECT_EQ(ids(*limit_layers(model, 2)), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(limit_layers(model, 2)->num_layers, 6);
  EXPECT_EQ(limit_layers(model, 0)->linear_layers.size(), 5u);
  EXPECT_EQ(limit_layers(model, 5)->linear_layers.size(), 5u);
  EXPECT_EQ(limit_layers(model, 6).status().message(), "layers: expected 0 to 5, got 6");
  EXPECT_EQ(limit_layers(model, -1).status().code(), StatusCode::kInvalidArgument);
}

TEST(LayerKind, Names) {
  EXPECT_EQ(layer_kind_name(LayerKind::kKda), "kda");
  EXPECT_EQ(layer_kind_name(LayerKind::kLightning), "lightning");
}

}  // namespace
}  // namespace linestate
