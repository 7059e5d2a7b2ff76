// One Lightning layer: linear attention -> norm, for every segment of a batch.
#include <algorithm>

#include "backends/backend_common.h"
#include "backends/token_fill.h"
#include "base/check.h"
#include "base/message.h"
#include "linestate/ops/norm.h"
#include "linestate/trace_range.h"
#include "ops/lightning/prefill/lightning_prefill_kernels.h"
#include "ops/norm/group_rms_norm/group_rms_norm_kernels.h"

namespace linestate {
namespace {

struct SegmentPlan {
  Segment segment;
  bool norm = false;
  LightningParams attention;
  LightningRecord record;  // verify
  ReplayRing ring;         // decode of a pool with replay rings; undefined tensors without
  GroupRmsNormParams group_norm;
};

struct Names {
  std::string_view attention;
  std::string_view norm;
};

Names names_for(const KernelOptions& options, std::string_view call, RowKind kind) {
  return {pick_kernel(call, phase_option(options, kind), options.base),
          pick_kernel(call, options.norm, options.base)};
}

// [T, H, D] f32 between attention and norm; undefined without a norm.
TensorView take_attention_out(const LayerSpec& layer, int64_t tokens, bool norm, void* memory,
                              Device device, int64_t& bytes) {
  Scratch scratch(memory);
  TensorView out;
  if (norm) {
    float* data = scratch.take<float>(tokens * layer.out_channels());
    out = TensorView(data, DType::kF32, {tokens, layer.heads.num_heads, layer.heads.v_dim}, device);
  }
  bytes = scratch.bytes();
  return out;
}

Status check_io(const LayerSpec& layer, const LightningLayerWeights& weights,
                const LightningLayerIo& io, int64_t tokens, const ExecContext& context) {
  const int64_t heads = layer.heads.num_heads;
  const int64_t dim = layer.heads.k_dim;
  LINESTATE_RETURN_IF_ERROR(check_shape("q", io.q, {tokens, heads, dim}));
  LINESTATE_RETURN_IF_ERROR(check_shape("k", io.k, {tokens, heads, dim}));
  LINESTATE_RETURN_IF_ERROR(check_shape("v", io.v, {tokens, heads, dim}));
  LINESTATE_RETURN_IF_ERROR(check_shape("out", io.out, {tokens, heads, dim}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("out", io.out));
  LINESTATE_RETURN_IF_ERROR(check_placement("out", io.out, context));
  if (io.gate.defined()) {
    LINESTATE_RETURN_IF_ERROR(check_shape("gate", io.gate, {tokens, heads, dim}));
    if (!weights.norm_weight.defined()) {
      return invalid_argument("gate: expected none without norm_weight, got ", describe(io.gate));
    }
  }
  if (!weights.norm_weight.defined()) return {};
  if (layer.norm_spans_ranks()) {
    return Status(
        StatusCode::kUnsupported,
        concat("norm_weight: expected none, a norm group has ", layer.whole_group_channels(),
               " channels and this rank holds ", layer.out_channels() / layer.norm_groups,
               "; run rms_sum_sq, add over ranks, then group_rms_norm"));
  }
  return {};
}

// Heads and channels as one dimension. REQUIRES: a head's channels follow the last head's.
template <typename View>
View merge_heads(const View& tensor) {
  if (!tensor.defined()) return tensor;
  View merged = tensor;
  merged.rank = 2;
  merged.shape[1] = tensor.shape[1] * tensor.shape[2];
  merged.stride[1] = tensor.stride[2];
  return merged;
}

bool mergeable(const ConstTensorView& tensor) {
  return !tensor.defined() || tensor.shape[1] == 1 ||
         tensor.stride[1] == tensor.stride[2] * tensor.shape[2];
}

Status check_mergeable(const LightningLayerIo& io) {
  if (!mergeable(io.gate)) {
    return invalid_argument("gate: expected heads that follow each other in memory, got ",
                            describe(io.gate));
  }
  if (!mergeable(io.out)) {
    return invalid_argument("out: expected heads that follow each other in memory, got ",
                            describe(io.out));
  }
  return {};
}

LightningRecord record_of(const LightningRecord& record, int64_t tokens) {
  return {record_tokens(record.k, tokens), record_tokens(record.v, tokens)};
}

SegmentPlan plan_segment(const LayerSpec& layer, const Segment& segment,
                         const LightningLayerWeights& weights, const StatePool& pool,
                         int64_t pool_layer, const LightningLayerIo& io,
                         const TensorView& attention_out) {
  SegmentPlan plan;
  plan.segment = segment;
  plan.norm = weights.norm_weight.defined();
  plan.attention.rows = segment.rows;
  plan.attention.q = segment_tokens(io.q, segment);
  plan.attention.k = segment_tokens(io.k, segment);
  plan.attention.v = segment_tokens(io.v, segment);
  plan.attention.slopes = weights.slopes;
  plan.attention.scale = lightning_scale(layer.variant, layer.heads.k_dim);
  plan.attention.state = pool.recurrent(pool_layer);
  plan.attention.out = segment_tokens(plan.norm ? attention_out : io.out, segment);
  plan.attention.layer = layer.layer_id;
  if (segment.kind == RowKind::kVerify) {
    plan.record = record_of(io.record, segment.token_end - segment.token_begin);
  } else {
    plan.attention.snapshots = segment.snapshots;
  }
  if (segment.kind == RowKind::kDecode && pool.has_replay()) {
    plan.ring = pool.replay_ring(pool_layer);
    plan.attention.snapshots = {};  // copied behind the operator, once the token has flushed
  }
  if (!plan.norm) return plan;
  plan.group_norm.x = merge_heads(plan.attention.out);
  plan.group_norm.gate = merge_heads(segment_tokens(io.gate, segment));
  plan.group_norm.weight = weights.norm_weight;
  plan.group_norm.num_groups = layer.norm_groups;
  plan.group_norm.eps = layer.norm_eps;
  plan.group_norm.out = merge_heads(segment_tokens(io.out, segment));
  return plan;
}

bool replays(const SegmentPlan& plan) { return plan.ring.keys.defined(); }

LightningReplayParams replay_params(const SegmentPlan& plan) {
  return {plan.attention, plan.ring, plan.segment.replay_pending, plan.segment.replay_flush};
}

// Checks and selects every operator of the segment.
Result<int64_t> scratch_bytes(const SegmentPlan& plan, const Names& names,
                              const ExecContext& context) {
  if (plan.norm) {
    LINESTATE_RETURN_IF_ERROR(
        op_workspace_bytes(group_rms_norm_table(), plan.group_norm, context, names.norm).status());
  }
  switch (plan.segment.kind) {
    case RowKind::kDecode:
      return replays(plan)
                 ? lightning_decode_replay_workspace_bytes(replay_params(plan), context,
                                                           names.attention)
                 : lightning_decode_workspace_bytes(plan.attention, context, names.attention);
    case RowKind::kVerify:
      return lightning_verify_workspace_bytes({plan.attention, plan.segment.parent, plan.record},
                                              context, names.attention);
    default:
      return lightning_prefill_workspace_bytes(plan.attention, context, names.attention);
  }
}

Status run_attention(const SegmentPlan& plan, const Names& names, const ExecContext& context) {
  switch (plan.segment.kind) {
    case RowKind::kDecode:
      if (!replays(plan)) return lightning_decode(plan.attention, context, names.attention);
      LINESTATE_RETURN_IF_ERROR(
          lightning_decode_replay(replay_params(plan), context, names.attention));
      return copy_flushed_snapshots(plan.segment, plan.attention.state, context);
    case RowKind::kVerify:
      return lightning_verify({plan.attention, plan.segment.parent, plan.record}, context,
                              names.attention);
    default:
      return lightning_prefill(plan.attention, context, names.attention);
  }
}

KernelChoice explain_attention(const SegmentPlan& plan, const Names& names,
                               const ExecContext& context) {
  switch (plan.segment.kind) {
    case RowKind::kDecode:
      return replays(plan)
                 ? explain_lightning_decode_replay(replay_params(plan), context, names.attention)
                 : explain_lightning_decode(plan.attention, context, names.attention);
    case RowKind::kVerify:
      return explain_lightning_verify({plan.attention, plan.segment.parent, plan.record}, context,
                                      names.attention);
    default:
      return explain_lightning_prefill(plan.attention, context, names.attention);
  }
}

Status run_segment(const SegmentPlan& plan, const Names& names, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(run_attention(plan, names, context));
  if (!plan.norm) return {};
  LINESTATE_RETURN_IF_ERROR(
      group_rms_norm(plan.group_norm, without_finite_check(context), names.norm));
  LINESTATE_RETURN_IF_ERROR(zero_unreal_tokens(plan.segment, plan.attention.state.shape[0],
                                               plan.group_norm.out, context));
  return check_finite_output(context, plan.group_norm.out);
}

/// Scratch of prefill may grow with the call: the most that `tokens` tokens, in as many rows as can
/// have some, take in any io dtype.
int64_t prefill_scratch(const SegmentPlan& empty, int64_t tokens, const Names& names,
                        const ExecContext& context) {
  LightningParams params = empty.attention;
  for (ConstTensorView* view : {&params.q, &params.k, &params.v}) view->shape[0] = tokens;
  params.out.shape[0] = tokens;
  params.rows.slot.shape[0] = std::min(tokens, params.state.shape[0]);
  int64_t most = 0;
  for (const DType io : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (ConstTensorView* view : {&params.q, &params.k, &params.v}) view->dtype = io;
    most = std::max(
        most, planned_workspace_bytes(lightning_prefill_table(), params, context, names.attention));
  }
  return most;
}

struct ForwardPlan {
  SegmentPlans<SegmentPlan> segments;
  int64_t buffer_bytes = 0;
};

Result<ForwardPlan> plan_forward(const ModelConfig& model, int64_t pool_layer,
                                 const LightningLayerWeights& weights,
                                 const ForwardMetadata& metadata, const StatePool& pool,
                                 const LightningLayerIo& io, const ExecContext& context) {
  const LayerSpec* layer = nullptr;
  LINESTATE_RETURN_IF_ERROR(find_layer(model, LayerKind::kLightning, pool, pool_layer, &layer));
  LINESTATE_RETURN_IF_ERROR(check_metadata_device(metadata, context));
  const int64_t tokens = metadata.token_capacity();
  LINESTATE_RETURN_IF_ERROR(check_io(*layer, weights, io, tokens, context));
  const bool norm = weights.norm_weight.defined();
  if (norm) LINESTATE_RETURN_IF_ERROR(check_mergeable(io));
  ForwardPlan plan;
  const TensorView attention_out = take_attention_out(*layer, tokens, norm, context.workspace.data,
                                                      context.device, plan.buffer_bytes);
  LINESTATE_RETURN_IF_ERROR(check_workspace(context, plan.buffer_bytes));
  for (const Segment& segment : metadata.segments()) {
    if (segment.kind == RowKind::kPad) continue;
    plan.segments.push_back(
        plan_segment(*layer, segment, weights, pool, pool_layer, io, attention_out));
  }
  return plan;
}

LightningCommitParams commit_params(const LayerSpec& layer, const Segment& segment,
                                    const LightningLayerWeights& weights, const StatePool& pool,
                                    int64_t pool_layer, const LightningCommitIo& io) {
  LightningCommitParams params;
  params.rows = segment.rows;
  params.parent = segment.parent;
  params.accepted_node = io.accepted_node;
  params.record = record_of(io.record, segment.token_end - segment.token_begin);
  params.slopes = weights.slopes;
  params.state = pool.recurrent(pool_layer);
  params.snapshots = segment.snapshots;
  params.taken = segment.taken;
  params.layer = layer.layer_id;
  return params;
}

}  // namespace

Result<LightningBackend> LightningBackend::create(const ModelConfig& model,
                                                  KernelOptions options) try {
  LINESTATE_RETURN_IF_ERROR(validate(model));
  const bool any = std::any_of(model.linear_layers.begin(), model.linear_layers.end(),
                               [](const LayerSpec& l) { return l.kind == LayerKind::kLightning; });
  if (!any) return invalid_argument("model: expected a Lightning layer in ", model.name);
  LightningBackend backend;
  backend.model_ = model;
  backend.options_ = std::move(options);
  return backend;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<int64_t> LightningBackend::workspace_bytes(int64_t max_tokens, const StatePool& pool,
                                                  const ExecContext& context,
                                                  std::string_view kernel) const try {
  if (max_tokens < 0) return invalid_argument("max_tokens: expected >= 0, got ", max_tokens);
  int64_t most = 0;
  for (size_t i = 0; i < model_.linear_layers.size(); ++i) {
    if (model_.linear_layers[i].kind != LayerKind::kLightning) continue;
    const auto index = static_cast<int64_t>(i);
    const LayerSpec* layer = nullptr;
    LINESTATE_RETURN_IF_ERROR(find_layer(model_, LayerKind::kLightning, pool, index, &layer));
    const int64_t heads = layer->heads.num_heads;
    const int64_t dim = layer->heads.k_dim;
    // No tokens; the slopes' values are not looked at.
    const std::vector<float> slopes(static_cast<size_t>(heads));
    LightningLayerWeights weights;
    const Device device = pool.device();
    weights.slopes = ConstTensorView(slopes.data(), DType::kF32, {heads}, device);
    LightningLayerIo io;
    io.out = TensorView(nullptr, DType::kF32, {0, heads, dim}, device);
    io.q = io.k = io.v = io.out;
    io.record = {io.out, io.out};
    Segment segment;
    segment.rows = empty_rows(device);
    segment.replay_pending = TensorView(nullptr, DType::kI32, {0}, device);
    segment.replay_flush = TensorView(nullptr, DType::kU8, {0}, device);
    for (const RowKind kind : {RowKind::kExtend, RowKind::kDecode, RowKind::kVerify}) {
      segment.kind = kind;
      const SegmentPlan plan = plan_segment(*layer, segment, weights, pool, index, io, {});
      const Result<int64_t> scratch =
          scratch_bytes(plan, names_for(options_, kernel, kind), context);
      if (!scratch.ok()) return scratch.status();
      int64_t buffers = 0;
      take_attention_out(*layer, max_tokens, true, nullptr, {}, buffers);
      most = std::max(most, buffers + *scratch);
      if (kind != RowKind::kExtend) continue;
      most = std::max(most, buffers + prefill_scratch(plan, max_tokens,
                                                      names_for(options_, kernel, kind), context));
    }
    const LightningCommitIo commit{io.record, empty_rows(device).slot};
    const Result<int64_t> scratch = lightning_commit_workspace_bytes(
        commit_params(*layer, segment, weights, pool, index, commit), context,
        pick_kernel(kernel, options_.verify, options_.base));
    if (!scratch.ok()) return scratch.status();
    most = std::max(most, *scratch);
  }
  return most;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status LightningBackend::forward(int64_t pool_layer, const LightningLayerWeights& weights,
                                 const ForwardMetadata& metadata, const StatePool& pool,
                                 const LightningLayerIo& io, const ExecContext& context,
                                 std::string_view kernel) const try {
  const TraceRange range("lightning forward");
  const Result<ForwardPlan> plan =
      plan_forward(model_, pool_layer, weights, metadata, pool, io, context);
  if (!plan.ok()) return plan.status();
  const ExecContext inner = with_workspace_behind(context, plan->buffer_bytes);
  for (const SegmentPlan& segment : plan->segments) {
    const Names names = names_for(options_, kernel, segment.segment.kind);
    const Result<int64_t> scratch = scratch_bytes(segment, names, inner);
    if (!scratch.ok()) return scratch.status();
    LINESTATE_RETURN_IF_ERROR(check_workspace(context, plan->buffer_bytes + *scratch));
  }
  LINESTATE_RETURN_IF_ERROR(zero_uncovered_tokens(metadata, io.out, context));
  for (const SegmentPlan& segment : plan->segments) {
    LINESTATE_RETURN_IF_ERROR(
        run_segment(segment, names_for(options_, kernel, segment.segment.kind), inner));
  }
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status LightningBackend::commit(int64_t pool_layer, const LightningLayerWeights& weights,
                                const ForwardMetadata& metadata, const StatePool& pool,
                                const LightningCommitIo& io, const ExecContext& context,
                                std::string_view kernel) const try {
  const TraceRange range("lightning commit");
  const LayerSpec* layer = nullptr;
  LINESTATE_RETURN_IF_ERROR(find_layer(model_, LayerKind::kLightning, pool, pool_layer, &layer));
  const Segment* segment = metadata.find_segment(RowKind::kVerify);
  if (segment == nullptr) return invalid_argument("metadata: expected a batch with verify rows");
  return lightning_commit(commit_params(*layer, *segment, weights, pool, pool_layer, io),
                          with_workspace_behind(context, 0),
                          pick_kernel(kernel, options_.verify, options_.base));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

std::vector<KernelChoice> LightningBackend::explain(
    int64_t pool_layer, const LightningLayerWeights& weights, const ForwardMetadata& metadata,
    const StatePool& pool, const LightningLayerIo& io, const ExecContext& context,
    std::string_view kernel) const {
  const Result<ForwardPlan> plan =
      plan_forward(model_, pool_layer, weights, metadata, pool, io, context);
  if (!plan.ok()) return {refused_choice("lightning_backend", plan.status())};
  const ExecContext inner = with_workspace_behind(context, plan->buffer_bytes);
  std::vector<KernelChoice> choices;
  for (const SegmentPlan& segment : plan->segments) {
    const Names names = names_for(options_, kernel, segment.segment.kind);
    choices.push_back(explain_attention(segment, names, inner));
    if (segment.norm) {
      choices.push_back(explain_group_rms_norm(segment.group_norm, inner, names.norm));
    }
  }
  return choices;
}

}  // namespace linestate
