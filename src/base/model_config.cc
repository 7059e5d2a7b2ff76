#include "linestate/model_config.h"

#include <cmath>

#include "base/message.h"

namespace linestate {
namespace {

Status check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument(name, ": expected ", low, " to ", high, ", got ", value);
}

Status check_dim(const char* name, int64_t dim) {
  if (dim >= 16 && dim <= 256 && dim % 16 == 0) return {};
  return invalid_argument(name, ": expected a multiple of 16 from 16 to 256, got ", dim);
}

Status check_heads(const HeadShape& heads) {
  constexpr int64_t kMostHeads = 65536;  // far above any model; keeps all products in range
  LINESTATE_RETURN_IF_ERROR(check_range("num_heads", heads.num_heads, 1, kMostHeads));
  LINESTATE_RETURN_IF_ERROR(check_range("num_value_heads", heads.num_value_heads, 1, kMostHeads));
  if (heads.num_value_heads % heads.num_heads != 0) {
    return invalid_argument("num_value_heads: expected a multiple of num_heads ", heads.num_heads,
                            ", got ", heads.num_value_heads);
  }
  LINESTATE_RETURN_IF_ERROR(check_dim("k_dim", heads.k_dim));
  return check_dim("v_dim", heads.v_dim);
}

Status check_kda(const LayerSpec& layer) {
  LINESTATE_RETURN_IF_ERROR(check_range("conv_width", layer.conv_width, 2, 4));
  const bool bounded = layer.gate_form == KdaGate::kBounded;
  const bool fits = bounded ? layer.lower_bound < 0.0f && std::isfinite(layer.lower_bound)
                            : layer.lower_bound == 0.0f;
  if (fits) return {};
  return invalid_argument(
      "lower_bound: expected ",
      bounded ? "a finite value < 0 for a bounded gate" : "0 for a gate that is not bounded",
      ", got ", layer.lower_bound);
}

Status check_norm_groups(const LayerSpec& layer) {
  const int64_t channels = layer.out_channels();
  if (layer.norm_groups < 1 || channels % layer.norm_groups != 0) {
    return invalid_argument("norm_groups: expected a divisor of the ", channels,
                            " output channels, got ", layer.norm_groups);
  }
  const int64_t local = channels / layer.norm_groups;
  const int64_t whole = layer.whole_group_channels();
  // A group that spans ranks is the only one of its layer and every rank holds an equal part.
  if (whole == local || (layer.norm_groups == 1 && whole > 0 && whole % local == 0)) return {};
  return invalid_argument("norm_group_channels: expected ", local,
                          layer.norm_groups == 1 ? " or a multiple of it" : "", ", got ", whole);
}

Status check_lightning(const LayerSpec& layer) {
  const HeadShape& heads = layer.heads;
  if (heads.num_value_heads != heads.num_heads) {
    return invalid_argument("num_value_heads: expected num_heads ", heads.num_heads,
                            " in a lightning layer, got ", heads.num_value_heads);
  }
  if (heads.v_dim != heads.k_dim) {
    return invalid_argument("v_dim: expected k_dim ", heads.k_dim, " in a lightning layer, got ",
                            heads.v_dim);
  }
  return check_norm_groups(layer);
}

Status prefixed(const ModelConfig& model, size_t index, const Status& status) {
  if (status.ok()) return {};
  return Status(status.code(),
                concat(model.name, ": linear_layers[", index, "] (layer_id ",
                       model.linear_layers[index].layer_id, "): ", status.message()));
}

}  // namespace

std::string_view layer_kind_name(LayerKind kind) {
  return kind == LayerKind::kKda ? "kda" : "lightning";
}

int64_t LayerSpec::conv_channels() const {
  if (kind != LayerKind::kKda) return 0;
  return 2 * heads.num_heads * heads.k_dim + heads.num_value_heads * heads.v_dim;
}

Status validate(const LayerSpec& layer) try {
  if (layer.layer_id < 0) return invalid_argument("layer_id: expected >= 0, got ", layer.layer_id);
  LINESTATE_RETURN_IF_ERROR(check_heads(layer.heads));
  if (!(layer.norm_eps > 0.0f) || !std::isfinite(layer.norm_eps)) {
    return invalid_argument("norm_eps: expected a finite value > 0, got ", layer.norm_eps);
  }
  return layer.kind == LayerKind::kKda ? check_kda(layer) : check_lightning(layer);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status validate(const ModelConfig& model) try {
  if (model.num_layers < 1) {
    return invalid_argument(model.name, ": num_layers: expected at least 1, got ",
                            model.num_layers);
  }
  if (model.linear_layers.empty()) {
    return invalid_argument(model.name, ": linear_layers: expected at least one, got none");
  }
  int32_t previous = -1;
  for (size_t i = 0; i < model.linear_layers.size(); ++i) {
    const LayerSpec& layer = model.linear_layers[i];
    LINESTATE_RETURN_IF_ERROR(prefixed(model, i, validate(layer)));
    if (layer.layer_id <= previous || layer.layer_id >= model.num_layers) {
      return prefixed(model, i,
                      invalid_argument("layer_id: expected ", previous + 1, " to ",
                                       model.num_layers - 1, ", got ", layer.layer_id));
    }
    previous = layer.layer_id;
  }
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<LayerSpec> shard_layer(const LayerSpec& layer, const TpShard& shard) try {
  LINESTATE_RETURN_IF_ERROR(validate(layer));
  const Result<HeadRange> heads = shard.heads(layer.heads.num_heads, "num_heads");
  if (!heads.ok()) return heads.status();
  const Result<HeadRange> value = shard.heads(layer.heads.num_value_heads, "num_value_heads");
  if (!value.ok()) return value.status();

  LayerSpec local = layer;
  local.heads.num_heads = heads->size();
  local.heads.num_value_heads = value->size();
  if (layer.kind == LayerKind::kLightning) {
    local.norm_group_channels = layer.whole_group_channels();
    if (layer.norm_groups > 1) {
      const Result<HeadRange> groups = shard.heads(layer.norm_groups, "norm_groups");
      if (!groups.ok()) return groups.status();
      local.norm_groups = groups->size();
    }
  }
  return local;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<ModelConfig> shard_model(const ModelConfig& model, const TpShard& shard) try {
  LINESTATE_RETURN_IF_ERROR(validate(model));
  ModelConfig local = model;
  for (size_t i = 0; i < model.linear_layers.size(); ++i) {
    Result<LayerSpec> layer = shard_layer(model.linear_layers[i], shard);
    if (!layer.ok()) return prefixed(model, i, layer.status());
    local.linear_layers[i] = *layer;
  }
  return local;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<ModelConfig> limit_layers(const ModelConfig& model, int64_t count) try {
  const auto have = static_cast<int64_t>(model.linear_layers.size());
  LINESTATE_RETURN_IF_ERROR(check_range("layers", count, 0, have));
  ModelConfig limited = model;
  if (count > 0) limited.linear_layers.resize(static_cast<size_t>(count));
  return limited;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace linestate
