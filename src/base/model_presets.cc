// Shapes of published models. Where a model's layer list is not published, the pattern used here is
// said beside it.
#include <iterator>

#include "base/message.h"
#include "linestate/model_config.h"

namespace linestate {
namespace {

LayerSpec kda(int64_t heads, int64_t value_heads, int64_t dim, float lower_bound) {
  LayerSpec layer;
  layer.kind = LayerKind::kKda;
  layer.heads = {heads, value_heads, dim, dim};
  layer.gate_form = lower_bound < 0.0f ? KdaGate::kBounded : KdaGate::kSoftplus;
  layer.lower_bound = lower_bound;
  return layer;
}

LayerSpec lightning(int64_t heads, int64_t dim, LightningVariant variant, SlopeRule rule,
                    int64_t norm_groups) {
  LayerSpec layer;
  layer.kind = LayerKind::kLightning;
  layer.heads = {heads, heads, dim, dim};
  layer.variant = variant;
  layer.slope_rule = rule;
  layer.norm_groups = norm_groups;
  return layer;
}

// `layer` everywhere but in every `period`-th decoder layer, and not in the last one either when
// `last_is_softmax`.
ModelConfig periodic(const char* name, int32_t num_layers, int32_t period, bool last_is_softmax,
                     LayerSpec layer) {
  ModelConfig model;
  model.name = name;
  model.num_layers = num_layers;
  for (int32_t id = 0; id < num_layers; ++id) {
    if ((id + 1) % period == 0 || (last_is_softmax && id + 1 == num_layers)) continue;
    layer.layer_id = id;
    model.linear_layers.push_back(layer);
  }
  return model;
}

// Both backends, both gates, value heads that share key heads, both Lightning variants, in a size a
// laptop runs. Two norm groups, so that two ranks hold whole groups. The sixth layer is softmax, as
// the last one of every Lightning model is: the slope factor of a last layer, 1e-5, would leave a
// decay of 5e-8 a token, less than an f32 state can follow.
ModelConfig tiny(const char* name) {
  ModelConfig model;
  model.name = name;
  model.num_layers = 6;
  model.linear_layers = {
      kda(2, 4, 64, -5.0f),
      kda(2, 4, 64, -5.0f),
      kda(2, 4, 64, 0.0f),
      lightning(2, 64, LightningVariant::kSegLa, SlopeRule::kLayerOverLast, 2),
      lightning(2, 64, LightningVariant::kMinimax, SlopeRule::kLayerOverLastPlusEps, 2),
  };
  for (int32_t id = 0; id < 5; ++id) model.linear_layers[static_cast<size_t>(id)].layer_id = id;
  return model;
}

// 20 of 27: all but 4, 8, ..., 24 and 27, counted from 1.
ModelConfig kimi_linear(const char* name) {
  return periodic(name, 27, 4, true, kda(32, 32, 128, 0.0f));
}

// 69 of 93. The list is not published; Kimi-Linear's pattern (every fourth layer and the last one
// softmax) gives this count.
ModelConfig kimi_k3(const char* name) {
  return periodic(name, 93, 4, true, kda(96, 96, 128, -5.0f));
}

// 34 of 45. The list is not published; every fourth layer softmax gives this count.
ModelConfig glm_flash(const char* name) {
  return periodic(name, 45, 4, false, kda(64, 64, 128, -5.0f));
}

// 70 of 80. One norm over all 8192 channels.
ModelConfig minimax_01(const char* name) {
  return periodic(
      name, 80, 8, false,
      lightning(64, 128, LightningVariant::kMinimax, SlopeRule::kLayerOverLastPlusEps, 1));
}

// `period` is layer_group_size. Four norm groups are ring-mini's; ring-flash is assumed to have as
// many.
ModelConfig ring(const char* name, int32_t num_layers, int32_t period, int64_t heads) {
  LayerSpec layer = lightning(heads, 128, LightningVariant::kSegLa, SlopeRule::kPreviousLayer, 4);
  layer.norm_eps = 1e-6f;
  return periodic(name, num_layers, period, false, layer);
}

struct Preset {
  const char* name;
  ModelConfig (*make)(const char* name);
};

constexpr Preset kPresets[] = {
    {"tiny", tiny},
    {"kimi-linear", kimi_linear},
    {"kimi-k3", kimi_k3},
    {"glm-5.3-flash", glm_flash},
    {"minimax-01", minimax_01},
    {"ring-mini", [](const char* name) { return ring(name, 20, 5, 16); }},
    {"ring-flash", [](const char* name) { return ring(name, 32, 8, 32); }},
};

}  // namespace

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

Result<ModelConfig> model_preset(std::string_view name) try {
  std::string list;
  for (const Preset& preset : kPresets) {
    if (name == preset.name) return preset.make(preset.name);
    list += concat(list.empty() ? "" : ", ", preset.name);
  }
  return Status(StatusCode::kNotFound, concat("model: expected one of ", list, ", got ", name));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace linestate
