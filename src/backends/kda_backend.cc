// One KDA layer: conv -> gate, delta rule -> norm, for every segment of a batch.
#include <algorithm>

#include "backends/backend_common.h"
#include "base/check.h"
#include "base/message.h"
#include "linestate/ops/norm.h"

namespace linestate {
namespace {

// The operators of one segment, ready to launch.
struct SegmentPlan {
  Segment segment;
  bool decode = false;
  bool norm = false;
  CausalConv1dParams conv;
  KdaParams kda;
  GatedRmsNormParams gated_norm;
};

struct Names {
  std::string_view conv;
  std::string_view attention;
  std::string_view norm;
};

Names names_for(const KernelOptions& options, std::string_view call, bool decode) {
  return {pick_kernel(call, options.conv, options.base),
          pick_kernel(call, decode ? options.decode : options.prefill, options.base),
          pick_kernel(call, options.norm, options.base)};
}

// Buffers between the operators, over the whole token capacity.
struct Buffers {
  TensorView conv_out;       // [T, channels], io dtype: the convolution rounds as a model does
  TensorView attention_out;  // [T, HV, V] f32, read by the norm alone; undefined without a norm
  int64_t bytes = 0;
};

Buffers take_buffers(const LayerSpec& layer, DType io_dtype, int64_t tokens, bool norm,
                     void* memory) {
  Scratch scratch(memory);
  Buffers buffers;
  const int64_t channels = layer.conv_channels();
  auto* conv = scratch.take<char>(tokens * channels * dtype_bytes(io_dtype));
  buffers.conv_out = TensorView(conv, io_dtype, {tokens, channels});
  if (norm) {
    float* out = scratch.take<float>(tokens * layer.out_channels());
    buffers.attention_out =
        TensorView(out, DType::kF32, {tokens, layer.heads.num_value_heads, layer.heads.v_dim});
  }
  buffers.bytes = scratch.bytes();
  return buffers;
}

Status check_io(const LayerSpec& layer, const KdaLayerWeights& weights, const KdaLayerIo& io,
                int64_t tokens, const ExecContext& context) {
  const HeadShape& heads = layer.heads;
  LINESTATE_RETURN_IF_ERROR(check_shape("qkv", io.qkv, {tokens, layer.conv_channels()}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("qkv", io.qkv));
  LINESTATE_RETURN_IF_ERROR(
      check_shape("gate", io.gate, {tokens, heads.num_value_heads, heads.k_dim}));
  LINESTATE_RETURN_IF_ERROR(check_shape("beta", io.beta, {tokens, heads.num_value_heads}));
  LINESTATE_RETURN_IF_ERROR(
      check_shape("out", io.out, {tokens, heads.num_value_heads, heads.v_dim}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("out", io.out));
  LINESTATE_RETURN_IF_ERROR(check_placement("out", io.out, context));
  if (weights.norm_weight.defined() != io.z.defined()) {
    return invalid_argument("z: expected exactly when norm_weight is given, got z ", describe(io.z),
                            " and norm_weight ", describe(weights.norm_weight));
  }
  if (io.z.defined()) {
    LINESTATE_RETURN_IF_ERROR(check_shape("z", io.z, {tokens, heads.num_value_heads, heads.v_dim}));
  }
  return {};
}

SegmentPlan plan_segment(const LayerSpec& layer, const Segment& segment,
                         const KdaLayerWeights& weights, const StatePool& pool, int64_t pool_layer,
                         const KdaLayerIo& io, const Buffers& buffers) {
  const HeadShape& heads = layer.heads;
  SegmentPlan plan;
  plan.segment = segment;
  plan.decode = segment.kind == RowKind::kDecode;
  plan.norm = weights.norm_weight.defined();

  plan.conv.rows = segment.rows;
  plan.conv.x = segment_tokens(io.qkv, segment);
  plan.conv.weight = weights.conv_weight;
  plan.conv.bias = weights.conv_bias;
  plan.conv.activation = layer.conv_activation;
  plan.conv.window = pool.conv_window(pool_layer);
  plan.conv.out = segment_tokens(buffers.conv_out, segment);
  plan.conv.layer = layer.layer_id;

  const ConstTensorView packed = plan.conv.out;
  const int64_t key_width = heads.num_heads * heads.k_dim;
  plan.kda.rows = segment.rows;
  plan.kda.q = packed.slice(1, 0, key_width).split(1, heads.k_dim);
  plan.kda.k = packed.slice(1, key_width, 2 * key_width).split(1, heads.k_dim);
  plan.kda.v = packed.slice(1, 2 * key_width, packed.shape[1]).split(1, heads.v_dim);
  plan.kda.gate = segment_tokens(io.gate, segment);
  plan.kda.beta = segment_tokens(io.beta, segment);
  plan.kda.gate_form = layer.gate_form;
  plan.kda.beta_form = layer.beta_form;
  plan.kda.A_log = weights.A_log;
  plan.kda.dt_bias = weights.dt_bias;
  plan.kda.lower_bound = layer.lower_bound;
  plan.kda.state = pool.recurrent(pool_layer);
  plan.kda.out = segment_tokens(plan.norm ? buffers.attention_out : io.out, segment);
  plan.kda.layer = layer.layer_id;

  plan.gated_norm.x = plan.kda.out;
  plan.gated_norm.z = segment_tokens(io.z, segment);
  plan.gated_norm.weight = weights.norm_weight;
  plan.gated_norm.eps = layer.norm_eps;
  plan.gated_norm.out = segment_tokens(io.out, segment);
  return plan;
}

// Checks and selects every operator of the segment; returns the scratch that the largest needs.
Result<int64_t> scratch_bytes(const SegmentPlan& plan, const Names& names,
                              const ExecContext& context) {
  const Result<int64_t> conv =
      plan.decode ? causal_conv1d_update_workspace_bytes(plan.conv, context, names.conv)
                  : causal_conv1d_prefill_workspace_bytes(plan.conv, context, names.conv);
  if (!conv.ok()) return conv.status();
  const Result<int64_t> attention =
      plan.decode ? kda_decode_workspace_bytes(plan.kda, context, names.attention)
                  : kda_prefill_workspace_bytes(plan.kda, context, names.attention);
  if (!attention.ok()) return attention.status();
  return std::max(*conv, *attention);
}

Status run_segment(const SegmentPlan& plan, const Names& names, const ExecContext& context) {
  if (plan.decode) {
    LINESTATE_RETURN_IF_ERROR(causal_conv1d_update(plan.conv, context, names.conv));
    LINESTATE_RETURN_IF_ERROR(kda_decode(plan.kda, context, names.attention));
  } else {
    LINESTATE_RETURN_IF_ERROR(causal_conv1d_prefill(plan.conv, context, names.conv));
    LINESTATE_RETURN_IF_ERROR(kda_prefill(plan.kda, context, names.attention));
  }
  if (!plan.norm) return {};
  LINESTATE_RETURN_IF_ERROR(gated_rms_norm(plan.gated_norm, context, names.norm));
  zero_unreal_tokens(plan.segment, plan.kda.state.shape[0], plan.gated_norm.out);
  return {};
}

// What forward() will do: the checked plans of all segments that have work.
struct ForwardPlan {
  std::vector<SegmentPlan> segments;
  Buffers buffers;
};

Result<ForwardPlan> plan_forward(const ModelConfig& model, int64_t pool_layer,
                                 const KdaLayerWeights& weights, const ForwardMetadata& metadata,
                                 const StatePool& pool, const KdaLayerIo& io,
                                 const ExecContext& context) {
  const LayerSpec* layer = nullptr;
  LINESTATE_RETURN_IF_ERROR(find_layer(model, LayerKind::kKda, pool, pool_layer, &layer));
  const int64_t tokens = metadata.token_capacity();
  LINESTATE_RETURN_IF_ERROR(check_io(*layer, weights, io, tokens, context));
  ForwardPlan plan;
  const bool norm = weights.norm_weight.defined();
  plan.buffers = take_buffers(*layer, io.qkv.dtype, tokens, norm, context.workspace.data);
  LINESTATE_RETURN_IF_ERROR(check_workspace(context, plan.buffers.bytes));
  for (const Segment& segment : metadata.segments()) {
    if (segment.kind == RowKind::kPad) continue;
    if (segment.kind == RowKind::kVerify) {
      return Status(StatusCode::kUnsupported, "rows: verify rows are not in this version");
    }
    plan.segments.push_back(
        plan_segment(*layer, segment, weights, pool, pool_layer, io, plan.buffers));
  }
  return plan;
}

// A forward pass without a token: right shapes and dtypes, for asking operators about scratch.
struct EmptyForward {
  std::vector<float> zeros;  // stands for every weight; only shapes are looked at
  KdaLayerWeights weights;
  KdaLayerIo io;
  Buffers buffers;

  EmptyForward(const LayerSpec& layer, const StatePool& pool) {
    const HeadShape& heads = layer.heads;
    const int64_t channels = layer.conv_channels();
    const int64_t gates = heads.num_value_heads * heads.k_dim;
    zeros.resize(static_cast<size_t>(std::max(channels * layer.conv_width, gates)));
    float* data = zeros.data();
    const DType io_dtype = pool.spec().window_dtype;
    weights.conv_weight = TensorView(data, DType::kF32, {channels, layer.conv_width});
    weights.A_log = TensorView(data, DType::kF32, {heads.num_value_heads});
    weights.dt_bias = TensorView(data, DType::kF32, {heads.num_value_heads, heads.k_dim});
    io.qkv = TensorView(nullptr, io_dtype, {0, channels});
    io.gate = TensorView(nullptr, io_dtype, {0, heads.num_value_heads, heads.k_dim});
    io.beta = TensorView(nullptr, io_dtype, {0, heads.num_value_heads});
    io.out = TensorView(nullptr, io_dtype, {0, heads.num_value_heads, heads.v_dim});
    buffers.conv_out = TensorView(nullptr, io_dtype, {0, channels});
  }

  Segment segment(bool decode) const {
    Segment segment;
    segment.kind = decode ? RowKind::kDecode : RowKind::kExtend;
    segment.rows = empty_rows();
    return segment;
  }
};

}  // namespace

Result<KdaBackend> KdaBackend::create(const ModelConfig& model, KernelOptions options) {
  LINESTATE_RETURN_IF_ERROR(validate(model));
  const bool any = std::any_of(model.linear_layers.begin(), model.linear_layers.end(),
                               [](const LayerSpec& l) { return l.kind == LayerKind::kKda; });
  if (!any) return invalid_argument("model: expected a KDA layer in ", model.name);
  KdaBackend backend;
  backend.model_ = model;
  backend.options_ = std::move(options);
  return backend;
}

Result<int64_t> KdaBackend::workspace_bytes(int64_t max_tokens, const StatePool& pool,
                                            const ExecContext& context,
                                            std::string_view kernel) const {
  if (max_tokens < 0) return invalid_argument("max_tokens: expected >= 0, got ", max_tokens);
  int64_t most = 0;
  for (size_t i = 0; i < model_.linear_layers.size(); ++i) {
    if (model_.linear_layers[i].kind != LayerKind::kKda) continue;
    const auto index = static_cast<int64_t>(i);
    const LayerSpec* layer = nullptr;
    LINESTATE_RETURN_IF_ERROR(find_layer(model_, LayerKind::kKda, pool, index, &layer));
    const EmptyForward empty(*layer, pool);
    for (const bool decode : {false, true}) {
      const SegmentPlan plan = plan_segment(*layer, empty.segment(decode), empty.weights, pool,
                                            index, empty.io, empty.buffers);
      const Result<int64_t> scratch =
          scratch_bytes(plan, names_for(options_, kernel, decode), context);
      if (!scratch.ok()) return scratch.status();
      // f32 is the widest io dtype.
      const Buffers buffers = take_buffers(*layer, DType::kF32, max_tokens, true, nullptr);
      most = std::max(most, buffers.bytes + *scratch);
    }
  }
  return most;
}

Status KdaBackend::forward(int64_t pool_layer, const KdaLayerWeights& weights,
                           const ForwardMetadata& metadata, const StatePool& pool,
                           const KdaLayerIo& io, const ExecContext& context,
                           std::string_view kernel) const {
  const Result<ForwardPlan> plan =
      plan_forward(model_, pool_layer, weights, metadata, pool, io, context);
  if (!plan.ok()) return plan.status();
  const ExecContext inner = with_workspace_behind(context, plan->buffers.bytes);
  for (const SegmentPlan& segment : plan->segments) {
    const Names names = names_for(options_, kernel, segment.decode);
    const Result<int64_t> scratch = scratch_bytes(segment, names, inner);
    if (!scratch.ok()) return scratch.status();
    LINESTATE_RETURN_IF_ERROR(check_workspace(context, plan->buffers.bytes + *scratch));
    if (!segment.norm) continue;
    LINESTATE_RETURN_IF_ERROR(
        choice_status(explain_gated_rms_norm(segment.gated_norm, inner, names.norm)));
  }
  zero_uncovered_tokens(metadata, io.out);
  for (const SegmentPlan& segment : plan->segments) {
    LINESTATE_RETURN_IF_ERROR(
        run_segment(segment, names_for(options_, kernel, segment.decode), inner));
  }
  return {};
}

std::vector<KernelChoice> KdaBackend::explain(int64_t pool_layer, const KdaLayerWeights& weights,
                                              const ForwardMetadata& metadata,
                                              const StatePool& pool, const KdaLayerIo& io,
                                              const ExecContext& context,
                                              std::string_view kernel) const {
  const Result<ForwardPlan> plan =
      plan_forward(model_, pool_layer, weights, metadata, pool, io, context);
  if (!plan.ok()) return {refused_choice("kda_backend", plan.status())};
  const ExecContext inner = with_workspace_behind(context, plan->buffers.bytes);
  std::vector<KernelChoice> choices;
  for (const SegmentPlan& segment : plan->segments) {
    const Names names = names_for(options_, kernel, segment.decode);
    if (segment.decode) {
      choices.push_back(explain_causal_conv1d_update(segment.conv, inner, names.conv));
      choices.push_back(explain_kda_decode(segment.kda, inner, names.attention));
    } else {
      choices.push_back(explain_causal_conv1d_prefill(segment.conv, inner, names.conv));
      choices.push_back(explain_kda_prefill(segment.kda, inner, names.attention));
    }
    if (segment.norm) {
      choices.push_back(explain_gated_rms_norm(segment.gated_norm, inner, names.norm));
    }
  }
  return choices;
}

}  // namespace linestate
