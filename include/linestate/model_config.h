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
  int64_t norm_groups = 1;  // groups of the norm after attention that have channels in this layer
  // Channels of one whole group over all ranks; 0 = this layer holds its groups whole. Larger than
  // out_channels() / norm_groups only where one group spans ranks (see shard_layer).
  int64_t norm_group_channels = 0;

  float norm_eps = 1e-5f;  // > 0

  /// Channels of the convolution, q | k | v: 2*H*K + HV*V for KDA, 0 for Lightning.
  int64_t conv_channels() const;
  /// Channels of the attention output: HV * V.
  int64_t out_channels() const { return heads.num_value_heads * heads.v_dim; }
  /// norm_group_channels with its default resolved. REQUIRES: norm_groups >= 1.
  int64_t whole_group_channels() const {
    return norm_group_channels != 0 ? norm_group_channels : out_channels() / norm_groups;
  }
  /// True when a group has channels on other ranks, so that its sum of squares is only partial.
  bool norm_spans_ranks() const { return whole_group_channels() * norm_groups > out_channels(); }
};

struct ModelConfig {
  std::string name;
  int32_t num_layers = 0;                // all decoder layers
  std::vector<LayerSpec> linear_layers;  // at least one, layer_id strictly rising
};

/// kInvalidArgument naming the first field that breaks its rule above.
Status validate(const LayerSpec& layer);
Status validate(const ModelConfig& model);

/// The shard's part of a layer: heads divided, and for Lightning the norm groups, so that every
/// rank holds whole groups. A single group (MiniMax normalises all heads together) cannot be
/// divided: it stays one group that spans the ranks, and norm_group_channels keeps its full size.
/// Everything else is unchanged.
/// Errors: kInvalidArgument when the shard does not divide num_heads, num_value_heads or, above
/// one, norm_groups.
Result<LayerSpec> shard_layer(const LayerSpec& layer, const TpShard& shard);
/// shard_layer for every layer.
Result<ModelConfig> shard_model(const ModelConfig& model, const TpShard& shard);

/// Keeps the first `count` linear layers; 0 keeps all. Errors: kInvalidArgument when count is
/// negative or larger than what the model has.
Result<ModelConfig> limit_layers(const ModelConfig& model, int64_t count);

/// Slope rules are those of each model's own modelling code.
/// tiny, kimi-linear, kimi-k3, glm-5.3-flash, minimax-01, ring-mini, ring-flash.
/// Errors: kNotFound listing these names.
Result<ModelConfig> model_preset(std::string_view name);
std::vector<std::string> model_preset_names();

}  // namespace linestate
