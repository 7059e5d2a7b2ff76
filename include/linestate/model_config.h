// What a model's linear-attention layers look like. No weights: shapes, forms and constants.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "linestate/ops/causal_conv1d.h"
#include "linestate/ops/kda.h"
#include "linestate/ops/lightning.h"
#include "linestate/status.h"
#include "linestate/tp_shard.h"

namespace linestate {

enum class LayerKind : uint8_t { kKda, kLightning };
/// "kda" | "lightning".
std::string_view layer_kind_name(LayerKind kind);

/// Head counts and sizes of one layer, over all ranks or of one shard (see shard_layer).
struct HeadShape {
  int64_t num_heads = 0;        // H, key/query heads
  int64_t num_value_heads = 0;  // HV, a multiple of H; Lightning: H
  int64_t k_dim = 0;            // K, a multiple of 16 up to 256
  int64_t v_dim = 0;            // V, a multiple of 16 up to 256; Lightning: K
  bool operator==(const HeadShape&) const = default;
};

struct LayerSpec {
  LayerKind kind = LayerKind::kKda;
  int32_t layer_id = 0;  // global decoder layer, softmax layers counted
  HeadShape heads;

  // KDA
  int64_t conv_width = 4;  // W, 2..4
  Activation conv_activation = Activation::kSilu;
  KdaGate gate_form = KdaGate::kSoftplus;
  float lower_bound = 0.0f;  // < 0 for kBounded, else 0
  KdaBeta beta_form = KdaBeta::kLogits;

  // Lightning
  LightningVariant variant = LightningVariant::kSegLa;
  SlopeRule slope_rule = SlopeRule::kLayerOverLast;
  int64_t norm_groups = 1;  // groups of the norm after attention, over all ranks

  float norm_eps = 1e-5f;

  /// Channels of the convolution, q | k | v: 2*H*K + HV*V for KDA, 0 for Lightning.
  int64_t conv_channels() const;
  /// Channels of the attention output: HV * V.
  int64_t out_channels() const { return heads.num_value_heads * heads.v_dim; }
};

struct ModelConfig {
  std::string name;
  int32_t num_layers = 0;  // all decoder layers
  std::vector<LayerSpec> linear_layers;
};

/// kInvalidArgument naming the first field that breaks its rule above.
Status validate(const LayerSpec& layer);
Status validate(const ModelConfig& model);

/// The shard's part of a layer: heads and norm groups divided, everything else unchanged.
/// Errors: kInvalidArgument when the shard does not divide the heads or the norm groups.
Result<LayerSpec> shard_layer(const LayerSpec& layer, const TpShard& shard);
/// shard_layer for every layer.
Result<ModelConfig> shard_model(const ModelConfig& model, const TpShard& shard);

/// Keeps the first `count` linear layers; 0 keeps all. Errors: kInvalidArgument when count is
/// negative or larger than what the model has.
Result<ModelConfig> limit_layers(const ModelConfig& model, int64_t count);

/// tiny, kimi-linear, kimi-k3, glm-5.3-flash, minimax-01, ring-mini, ring-flash.
/// Errors: kNotFound listing these names.
Result<ModelConfig> model_preset(std::string_view name);
std::vector<std::string> model_preset_names();

}  // namespace linestate
