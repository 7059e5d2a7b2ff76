#include "capi/handles.h"

using namespace linestate;        // NOLINT: this file is the wall between the two
using namespace linestate::capi;  // NOLINT

namespace {

LayerSpec to_layer(Reader& reader, const ls_layer_spec& in) {
  LayerSpec layer;
  layer.layer_id = in.layer_id;
  layer.heads.num_heads = in.num_heads;
  layer.heads.num_value_heads = or_default(in.num_value_heads, in.num_heads);
  layer.heads.k_dim = in.k_dim;
  layer.heads.v_dim = or_default(in.v_dim, in.k_dim);
  layer.conv_width = or_default(in.conv_width, layer.conv_width);
  layer.lower_bound = in.lower_bound;
  layer.norm_groups = or_default(in.norm_groups, layer.norm_groups);
  layer.norm_group_channels = in.norm_group_channels;
  layer.norm_eps = or_default(in.norm_eps, layer.norm_eps);
  reader.choice("layers.kind", in.kind, LayerKind::kLightning, &layer.kind);
  reader.choice("layers.conv_activation", in.conv_activation, Activation::kSilu,
                &layer.conv_activation);
  reader.choice("layers.gate_form", in.gate_form, KdaGate::kActivated, &layer.gate_form);
  reader.choice("layers.beta_form", in.beta_form, KdaBeta::kProbability, &layer.beta_form);
  reader.choice("layers.variant", in.variant, LightningVariant::kMinimax, &layer.variant);
  reader.choice("layers.slope_rule", in.slope_rule, SlopeRule::kPreviousLayer, &layer.slope_rule);
  return layer;
}

ls_layer_spec from_layer(const LayerSpec& layer) {
  ls_layer_spec out{};
  out.kind = static_cast<int32_t>(layer.kind);
  out.layer_id = layer.layer_id;
  out.num_heads = layer.heads.num_heads;
  out.num_value_heads = layer.heads.num_value_heads;
  out.k_dim = layer.heads.k_dim;
  out.v_dim = layer.heads.v_dim;
  out.conv_width = layer.conv_width;
  out.conv_activation = static_cast<int32_t>(layer.conv_activation);
  out.gate_form = static_cast<int32_t>(layer.gate_form);
  out.beta_form = static_cast<int32_t>(layer.beta_form);
  out.lower_bound = layer.lower_bound;
  out.variant = static_cast<int32_t>(layer.variant);
  out.slope_rule = static_cast<int32_t>(layer.slope_rule);
  out.norm_groups = layer.norm_groups;
  out.norm_group_channels = layer.norm_group_channels;
  out.norm_eps = layer.norm_eps;
  return out;
}

Status put_model(const Result<ModelConfig>& whole, TpShard shard, ls_model** out) {
  if (!whole.ok()) return whole.status();
  return put_handle(out, shard_model(*whole, shard));
}

}  // namespace

ls_status ls_model_from_preset(const char* name, int32_t tp_rank, int32_t tp_size, ls_model** out) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    *out = nullptr;
    LINESTATE_RETURN_IF_ERROR(require({{"name", name}}));
    return put_model(model_preset(name), {tp_rank, tp_size}, out);
  });
}

ls_status ls_model_from_layers(const ls_layer_spec* layers, size_t num_linear_layers,
                               int32_t num_layers, int32_t tp_rank, int32_t tp_size,
                               ls_model** out) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    *out = nullptr;
    ModelConfig model;
    model.name = "layers";
    model.num_layers = num_layers;
    Reader reader;
    for (size_t i = 0; i < num_linear_layers && reader.status().ok(); ++i) {
      ls_layer_spec layer{};
      reader.require_ok(load_element("layers", layers, i, &layer));
      model.linear_layers.push_back(to_layer(reader, layer));
    }
    LINESTATE_RETURN_IF_ERROR(reader.status());
    LINESTATE_RETURN_IF_ERROR(validate(model));
    return put_model(model, {tp_rank, tp_size}, out);
  });
}

ls_status ls_model_limit_layers(const ls_model* model, int64_t count, ls_model** out) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    *out = nullptr;
    LINESTATE_RETURN_IF_ERROR(require({{"model", model}}));
    return put_handle(out, limit_layers(model->config, count));
  });
}

void ls_model_destroy(ls_model* model) { delete model; }

ls_status ls_model_num_layers(const ls_model* model, int64_t* count) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"model", model}}));
    return put("count", count, model->config.num_layers);
  });
}

ls_status ls_model_num_linear_layers(const ls_model* model, int64_t* count) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"model", model}}));
    return put("count", count, model->config.linear_layers.size());
  });
}

ls_status ls_model_layer(const ls_model* model, int64_t index, ls_layer_spec* layer) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"model", model}}));
    const auto count = static_cast<int64_t>(model->config.linear_layers.size());
    if (index < 0 || index >= count) {
      return invalid_argument("index: expected 0 to ", count - 1, ", got ", index);
    }
    return store("layer", from_layer(model->config.linear_layers[static_cast<size_t>(index)]),
                 layer);
  });
}
