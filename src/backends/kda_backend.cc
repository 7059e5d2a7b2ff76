// One KDA layer over a batch: segments planned and checked, then run; and the commit of drafts.
#include <algorithm>

#include "backends/backend_common.h"
#include "backends/kda_segment.h"
#include "backends/token_fill.h"
#include "base/check.h"
#include "base/message.h"
#include "linestate/trace_range.h"
#include "ops/kda/prefill/kda_prefill_kernels.h"

namespace linestate {
namespace {

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

// What forward() will do: the plans of all segments that have work.
struct ForwardPlan {
  SegmentPlans<KdaSegment> segments;
  KdaBuffers buffers;
};

Result<ForwardPlan> plan_forward(const ModelConfig& model, int64_t pool_layer,
                                 const KdaLayerWeights& weights, const ForwardMetadata& metadata,
                                 const StatePool& pool, const KdaLayerIo& io,
                                 const ExecContext& context) {
  const LayerSpec* layer = nullptr;
  LINESTATE_RETURN_IF_ERROR(find_layer(model, LayerKind::kKda, pool, pool_layer, &layer));
  LINESTATE_RETURN_IF_ERROR(check_metadata_device(metadata, context));
  const int64_t tokens = metadata.token_capacity();
  LINESTATE_RETURN_IF_ERROR(check_io(*layer, weights, io, tokens, context));
  ForwardPlan plan;
  plan.buffers = take_kda_buffers(*layer, io.qkv.dtype, tokens, weights.norm_weight.defined(),
                                  context.workspace.data, context.device);
  LINESTATE_RETURN_IF_ERROR(check_workspace(context, plan.buffers.bytes));
  const KdaLayerCall call{*layer, weights, pool, pool_layer, io, plan.buffers};
  for (const Segment& segment : metadata.segments()) {
    if (segment.kind != RowKind::kPad) plan.segments.push_back(plan_kda_segment(call, segment));
  }
  return plan;
}

// A forward pass without a token: right shapes and dtypes, for asking operators about scratch.
struct EmptyForward {
  std::vector<float> zeros;  // stands for every weight; only shapes are looked at
  KdaLayerWeights weights;
  KdaLayerIo io;
  KdaBuffers buffers;
  Device device;

  EmptyForward(const LayerSpec& layer, const StatePool& pool) : device(pool.device()) {
    const HeadShape& heads = layer.heads;
    const int64_t channels = layer.conv_channels();
    const int64_t HV = heads.num_value_heads;
    zeros.resize(static_cast<size_t>(std::max(channels * layer.conv_width, HV * heads.k_dim)));
    float* data = zeros.data();
    const DType io_dtype = pool.spec().window_dtype;
    weights.conv_weight = TensorView(data, DType::kF32, {channels, layer.conv_width}, device);
    weights.A_log = TensorView(data, DType::kF32, {HV}, device);
    weights.dt_bias = TensorView(data, DType::kF32, {HV, heads.k_dim}, device);
    io.qkv = TensorView(nullptr, io_dtype, {0, channels}, device);
    io.gate = TensorView(nullptr, io_dtype, {0, HV, heads.k_dim}, device);
    io.beta = TensorView(nullptr, io_dtype, {0, HV}, device);
    io.out = TensorView(nullptr, io_dtype, {0, HV, heads.v_dim}, device);
    io.record.u = TensorView(nullptr, DType::kF32, {0, HV, heads.v_dim}, device);
    io.record.k = TensorView(nullptr, io_dtype, {0, heads.num_heads, heads.k_dim}, device);
    io.record.k_inverse_norm = TensorView(nullptr, DType::kF32, {0, heads.num_heads}, device);
    io.record.alpha = TensorView(nullptr, DType::kF32, {0, HV, heads.k_dim}, device);
    io.record_x = TensorView(nullptr, io_dtype, {0, channels}, device);
    buffers.conv_out = TensorView(nullptr, io_dtype, {0, channels}, device);
  }

  Segment segment(RowKind kind) const {
    Segment segment;
    segment.kind = kind;
    segment.rows = empty_rows(device);
    segment.replay_pending = TensorView(nullptr, DType::kI32, {0}, device);
    segment.replay_flush = TensorView(nullptr, DType::kU8, {0}, device);
    return segment;
  }
};

KdaCommitParams commit_params(const LayerSpec& layer, const Segment& segment, const StatePool& pool,
                              int64_t pool_layer, const KdaCommitIo& io) {
  const int64_t tokens = segment.token_end - segment.token_begin;
  KdaCommitParams params;
  params.rows = segment.rows;
  params.parent = segment.parent;
  params.accepted_node = io.accepted_node;
  params.record = record_of(io.record, tokens);
  params.conv_x = io.record_x;
  if (io.record_x.defined() && io.record_x.shape[0] >= tokens) {
    params.conv_x = io.record_x.slice(0, 0, tokens);
  }
  params.state = pool.recurrent(pool_layer);
  params.window = pool.conv_window(pool_layer);
  params.snapshots = segment.snapshots;
  params.taken = segment.taken;
  params.layer = layer.layer_id;
  return params;
}

/// Scratch of prefill may grow with the call: the most that `tokens` tokens, in as many rows as can
/// have some, take in any io dtype.
int64_t prefill_scratch(const KdaSegment& empty, int64_t tokens, const KdaKernelNames& names,
                        const ExecContext& context) {
  KdaParams params = empty.kda;
  for (ConstTensorView* view : {&params.q, &params.k, &params.v, &params.gate, &params.beta}) {
    view->shape[0] = tokens;
  }
  params.out.shape[0] = tokens;
  params.rows.slot.shape[0] = std::min(tokens, params.state.shape[0]);
  int64_t most = 0;
  for (const DType io : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (ConstTensorView* view : {&params.q, &params.k, &params.v, &params.gate}) {
      view->dtype = io;
    }
    for (const DType out : {io, DType::kF32}) {
      params.out.dtype = out;
      most = std::max(
          most, planned_workspace_bytes(kda_prefill_table(), params, context, names.attention));
    }
  }
  return most;
}

}  // namespace

Result<KdaBackend> KdaBackend::create(const ModelConfig& model, KernelOptions options) try {
  LINESTATE_RETURN_IF_ERROR(validate(model));
  const bool any = std::any_of(model.linear_layers.begin(), model.linear_layers.end(),
                               [](const LayerSpec& l) { return l.kind == LayerKind::kKda; });
  if (!any) return invalid_argument("model: expected a KDA layer in ", model.name);
  KdaBackend backend;
  backend.model_ = model;
  backend.options_ = std::move(options);
  return backend;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<int64_t> KdaBackend::workspace_bytes(int64_t max_tokens, const StatePool& pool,
                                            const ExecContext& context,
                                            std::string_view kernel) const try {
  if (max_tokens < 0) return invalid_argument("max_tokens: expected >= 0, got ", max_tokens);
  int64_t most = 0;
  for (size_t i = 0; i < model_.linear_layers.size(); ++i) {
    if (model_.linear_layers[i].kind != LayerKind::kKda) continue;
    const auto index = static_cast<int64_t>(i);
    const LayerSpec* layer = nullptr;
    LINESTATE_RETURN_IF_ERROR(find_layer(model_, LayerKind::kKda, pool, index, &layer));
    const EmptyForward empty(*layer, pool);
    const KdaLayerCall call{*layer, empty.weights, pool, index, empty.io, empty.buffers};
    for (const RowKind kind : {RowKind::kExtend, RowKind::kDecode, RowKind::kVerify}) {
      const Result<int64_t> scratch =
          kda_segment_scratch(plan_kda_segment(call, empty.segment(kind)),
                              kda_kernel_names(options_, kernel, kind), context);
      if (!scratch.ok()) return scratch.status();
      // f32 is the widest io dtype.
      const KdaBuffers buffers =
          take_kda_buffers(*layer, DType::kF32, max_tokens, true, nullptr, {});
      most = std::max(most, buffers.bytes + *scratch);
      if (kind == RowKind::kExtend) {
        most = std::max(
            most,
            buffers.bytes + prefill_scratch(plan_kda_segment(call, empty.segment(kind)), max_tokens,
                                            kda_kernel_names(options_, kernel, kind), context));
      }
    }
    KdaCommitIo commit;
    commit.record = empty.io.record;
    commit.record_x = empty.io.record_x;
    commit.accepted_node = empty_rows(pool.device()).slot;
    const Result<int64_t> scratch = kda_commit_workspace_bytes(
        commit_params(*layer, empty.segment(RowKind::kVerify), pool, index, commit), context,
        pick_kernel(kernel, options_.verify, options_.base));
    if (!scratch.ok()) return scratch.status();
    most = std::max(most, *scratch);
  }
  return most;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status KdaBackend::forward(int64_t pool_layer, const KdaLayerWeights& weights,
                           const ForwardMetadata& metadata, const StatePool& pool,
                           const KdaLayerIo& io, const ExecContext& context,
                           std::string_view kernel) const try {
  const TraceRange range("kda forward");
  const Result<ForwardPlan> plan =
      plan_forward(model_, pool_layer, weights, metadata, pool, io, context);
  if (!plan.ok()) return plan.status();
  const ExecContext inner = with_workspace_behind(context, plan->buffers.bytes);
  for (const KdaSegment& segment : plan->segments) {
    const Result<int64_t> scratch = kda_segment_scratch(
        segment, kda_kernel_names(options_, kernel, segment.segment.kind), inner);
    if (!scratch.ok()) return scratch.status();
    LINESTATE_RETURN_IF_ERROR(check_workspace(context, plan->buffers.bytes + *scratch));
  }
  LINESTATE_RETURN_IF_ERROR(zero_uncovered_tokens(metadata, io.out, context));
  for (const KdaSegment& segment : plan->segments) {
    LINESTATE_RETURN_IF_ERROR(
        run_kda_segment(segment, kda_kernel_names(options_, kernel, segment.segment.kind), inner));
  }
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status KdaBackend::commit(int64_t pool_layer, const ForwardMetadata& metadata,
                          const StatePool& pool, const KdaCommitIo& io, const ExecContext& context,
                          std::string_view kernel) const try {
  const TraceRange range("kda commit");
  const LayerSpec* layer = nullptr;
  LINESTATE_RETURN_IF_ERROR(find_layer(model_, LayerKind::kKda, pool, pool_layer, &layer));
  const Segment* segment = metadata.find_segment(RowKind::kVerify);
  if (segment == nullptr) return invalid_argument("metadata: expected a batch with verify rows");
  return kda_commit(commit_params(*layer, *segment, pool, pool_layer, io),
                    with_workspace_behind(context, 0),
                    pick_kernel(kernel, options_.verify, options_.base));
} catch (const std::bad_alloc&) {
  return out_of_memory();
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
  for (const KdaSegment& segment : plan->segments) {
    explain_kda_segment(segment, kda_kernel_names(options_, kernel, segment.segment.kind), inner,
                        choices);
  }
  return choices;
}

}  // namespace linestate
