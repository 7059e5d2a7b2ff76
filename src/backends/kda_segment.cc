#include "backends/kda_segment.h"

#include <algorithm>

#include "backends/backend_common.h"
#include "backends/token_fill.h"
#include "base/check.h"
#include "dispatch/external_registry.h"
#include "ops/kda/decode_step/kda_decode_step_kernels.h"
#include "ops/norm/gated_rms_norm/gated_rms_norm_kernels.h"

namespace linestate {

KdaKernelNames kda_kernel_names(const KernelOptions& options, std::string_view call, RowKind kind) {
  return {pick_kernel(call, options.conv, options.base),
          pick_kernel(call, phase_option(options, kind), options.base),
          pick_kernel(call, options.norm, options.base)};
}

KdaBuffers take_kda_buffers(const LayerSpec& layer, DType io_dtype, int64_t tokens, bool norm,
                            void* memory, Device device) {
  Scratch scratch(memory);
  KdaBuffers buffers;
  const int64_t channels = layer.conv_channels();
  auto* conv = scratch.take<char>(tokens * channels * dtype_bytes(io_dtype));
  buffers.conv_out = TensorView(conv, io_dtype, {tokens, channels}, device);
  if (norm) {
    float* out = scratch.take<float>(tokens * layer.out_channels());
    buffers.attention_out = TensorView(
        out, DType::kF32, {tokens, layer.heads.num_value_heads, layer.heads.v_dim}, device);
  }
  buffers.bytes = scratch.bytes();
  return buffers;
}

namespace {

void plan_conv(const KdaLayerCall& call, const Segment& segment, CausalConv1dParams& conv) {
  conv.rows = segment.rows;
  conv.x = segment_tokens(call.io.qkv, segment);
  conv.weight = call.weights.conv_weight;
  conv.bias = call.weights.conv_bias;
  conv.activation = call.layer.conv_activation;
  conv.window = call.pool.conv_window(call.pool_layer);
  conv.out = segment_tokens(call.buffers.conv_out, segment);
  if (segment.kind != RowKind::kVerify) conv.snapshots = segment.snapshots;
  conv.layer = call.layer.layer_id;
}

void plan_attention(const KdaLayerCall& call, const Segment& segment, const ConstTensorView& packed,
                    KdaParams& kda) {
  const HeadShape& heads = call.layer.heads;
  const int64_t key_width = heads.num_heads * heads.k_dim;
  kda.rows = segment.rows;
  kda.q = packed.slice(1, 0, key_width).split(1, heads.k_dim);
  kda.k = packed.slice(1, key_width, 2 * key_width).split(1, heads.k_dim);
  kda.v = packed.slice(1, 2 * key_width, packed.shape[1]).split(1, heads.v_dim);
  kda.gate = segment_tokens(call.io.gate, segment);
  kda.beta = segment_tokens(call.io.beta, segment);
  kda.gate_form = call.layer.gate_form;
  kda.beta_form = call.layer.beta_form;
  kda.A_log = call.weights.A_log;
  kda.dt_bias = call.weights.dt_bias;
  kda.lower_bound = call.layer.lower_bound;
  kda.state = call.pool.recurrent(call.pool_layer);
  if (segment.kind != RowKind::kVerify) kda.snapshots = segment.snapshots;
  kda.layer = call.layer.layer_id;
}

}  // namespace

KdaRecord record_of(const KdaRecord& record, int64_t tokens) {
  return {record_tokens(record.u, tokens), record_tokens(record.k, tokens),
          record_tokens(record.k_inverse_norm, tokens), record_tokens(record.alpha, tokens)};
}

KdaSegment plan_kda_segment(const KdaLayerCall& call, const Segment& segment) {
  KdaSegment plan;
  plan.segment = segment;
  plan.norm = call.weights.norm_weight.defined();
  plan_conv(call, segment, plan.conv);
  plan_attention(call, segment, plan.conv.out, plan.kda);
  plan.kda.out = segment_tokens(plan.norm ? call.buffers.attention_out : call.io.out, segment);
  if (segment.kind == RowKind::kVerify) {
    const int64_t tokens = segment.token_end - segment.token_begin;
    plan.record = record_of(call.io.record, tokens);
    plan.record_x = record_tokens(call.io.record_x, tokens);
  }
  if (segment.kind == RowKind::kDecode && call.pool.has_replay()) {
    plan.ring = call.pool.replay_ring(call.pool_layer);
    plan.kda.snapshots = {};  // copied behind the operator, once the token has flushed
  }
  plan.gated_norm.x = plan.kda.out;
  plan.gated_norm.z = segment_tokens(call.io.z, segment);
  plan.gated_norm.weight = call.weights.norm_weight;
  plan.gated_norm.eps = call.layer.norm_eps;
  plan.gated_norm.out = segment_tokens(call.io.out, segment);
  return plan;
}

namespace {

bool replays(const KdaSegment& plan) { return plan.ring.keys.defined(); }

KdaReplayParams replay_params(const KdaSegment& plan) {
  return {plan.kda, plan.ring, plan.segment.replay_pending, plan.segment.replay_flush};
}

/// True when nobody has asked for a row of `op`, nor brought one.
template <typename Params>
bool is_free(const char* op, std::string_view kernel) {
  return requested_kernel(op, kernel) == kAutoKernel && external_rows<Params>(op) == nullptr;
}

KdaDecodeStepParams step_params(const KdaSegment& plan) {
  KdaDecodeStepParams step;
  step.rows = plan.kda.rows;
  step.x = plan.conv.x;
  step.conv_weight = plan.conv.weight;
  step.conv_bias = plan.conv.bias;
  step.activation = plan.conv.activation;
  step.window = plan.conv.window;
  step.gate = plan.kda.gate;
  step.beta = plan.kda.beta;
  step.gate_form = plan.kda.gate_form;
  step.beta_form = plan.kda.beta_form;
  step.A_log = plan.kda.A_log;
  step.dt_bias = plan.kda.dt_bias;
  step.lower_bound = plan.kda.lower_bound;
  step.state = plan.kda.state;
  step.out = plan.norm ? plan.gated_norm.out : plan.kda.out;
  if (plan.norm) {
    step.norm_weight = plan.gated_norm.weight;
    step.z = plan.gated_norm.z;
    step.eps = plan.gated_norm.eps;
  }
  step.snapshots = plan.kda.snapshots;
  step.layer = plan.kda.layer;
  return step;
}

/// Up to here one launch is faster than three (docs/kernels/kda_decode_cuda.md).
constexpr int64_t kMostFusedHeads = 768;

/// True when one launch does the segment: same bits, so it needs no name of its own.
bool fuses(const KdaSegment& plan, const KdaKernelNames& names, const ExecContext& context) {
  if (context.device.type != DeviceType::kCuda || plan.segment.kind != RowKind::kDecode ||
      replays(plan) || plan.kda.v.shape[0] * plan.kda.v.shape[1] > kMostFusedHeads ||
      !is_free<CausalConv1dParams>("causal_conv1d_update", names.conv) ||
      !is_free<KdaParams>("kda_decode", names.attention) ||
      !is_free<GatedRmsNormParams>("gated_rms_norm", names.norm)) {
    return false;
  }
  for (const auto& row : kKdaDecodeStepRows) {
    if (row.device != DeviceType::kCuda || row.run == nullptr) continue;
    if (row.refuse(step_params(plan), context).empty()) return true;
  }
  return false;
}

Result<int64_t> conv_scratch(const KdaSegment& plan, const KdaKernelNames& names,
                             const ExecContext& context) {
  switch (plan.segment.kind) {
    case RowKind::kDecode:
      return causal_conv1d_update_workspace_bytes(plan.conv, context, names.conv);
    case RowKind::kVerify:
      return causal_conv1d_verify_workspace_bytes({plan.conv, plan.segment.parent}, context,
                                                  names.conv);
    default:
      return causal_conv1d_prefill_workspace_bytes(plan.conv, context, names.conv);
  }
}

Result<int64_t> attention_scratch(const KdaSegment& plan, const KdaKernelNames& names,
                                  const ExecContext& context) {
  switch (plan.segment.kind) {
    case RowKind::kDecode:
      return replays(plan)
                 ? kda_decode_replay_workspace_bytes(replay_params(plan), context, names.attention)
                 : kda_decode_workspace_bytes(plan.kda, context, names.attention);
    case RowKind::kVerify:
      return kda_verify_workspace_bytes({plan.kda, plan.segment.parent, plan.record}, context,
                                        names.attention);
    default:
      return kda_prefill_workspace_bytes(plan.kda, context, names.attention);
  }
}

Status run_attention(const KdaSegment& plan, const KdaKernelNames& names,
                     const ExecContext& context) {
  switch (plan.segment.kind) {
    case RowKind::kDecode:
      LINESTATE_RETURN_IF_ERROR(causal_conv1d_update(plan.conv, context, names.conv));
      if (!replays(plan)) return kda_decode(plan.kda, context, names.attention);
      LINESTATE_RETURN_IF_ERROR(kda_decode_replay(replay_params(plan), context, names.attention));
      return copy_flushed_snapshots(plan.segment, plan.kda.state, context);
    case RowKind::kVerify:
      // Keeps the convolution's inputs for commit.
      LINESTATE_RETURN_IF_ERROR(copy_tokens(plan.conv.x, plan.record_x, context));
      LINESTATE_RETURN_IF_ERROR(
          causal_conv1d_verify({plan.conv, plan.segment.parent}, context, names.conv));
      return kda_verify({plan.kda, plan.segment.parent, plan.record}, context, names.attention);
    default:
      LINESTATE_RETURN_IF_ERROR(causal_conv1d_prefill(plan.conv, context, names.conv));
      return kda_prefill(plan.kda, context, names.attention);
  }
}

}  // namespace

Result<int64_t> kda_segment_scratch(const KdaSegment& plan, const KdaKernelNames& names,
                                    const ExecContext& context) {
  if (plan.segment.kind == RowKind::kVerify) {
    LINESTATE_RETURN_IF_ERROR(
        check_shape("record_x", plan.record_x, {plan.conv.x.shape[0], plan.conv.x.shape[1]}));
    LINESTATE_RETURN_IF_ERROR(check_dtype("record_x", plan.record_x, {plan.conv.x.dtype}));
    LINESTATE_RETURN_IF_ERROR(check_placement("record_x", plan.record_x, context));
  }
  if (fuses(plan, names, context)) {
    return kda_decode_step_workspace_bytes(step_params(plan), context);
  }
  const Result<int64_t> conv = conv_scratch(plan, names, context);
  if (!conv.ok()) return conv.status();
  const Result<int64_t> attention = attention_scratch(plan, names, context);
  if (!attention.ok()) return attention.status();
  if (plan.norm) {
    LINESTATE_RETURN_IF_ERROR(
        op_workspace_bytes(gated_rms_norm_table(), plan.gated_norm, context, names.norm).status());
  }
  return std::max(*conv, *attention);
}

Status run_kda_segment(const KdaSegment& plan, const KdaKernelNames& names,
                       const ExecContext& context) {
  if (fuses(plan, names, context)) return kda_decode_step(step_params(plan), context);
  LINESTATE_RETURN_IF_ERROR(run_attention(plan, names, context));
  if (!plan.norm) return {};
  LINESTATE_RETURN_IF_ERROR(
      gated_rms_norm(plan.gated_norm, without_finite_check(context), names.norm));
  LINESTATE_RETURN_IF_ERROR(
      zero_unreal_tokens(plan.segment, plan.kda.state.shape[0], plan.gated_norm.out, context));
  return check_finite_output(context, plan.gated_norm.out);
}

void explain_kda_segment(const KdaSegment& plan, const KdaKernelNames& names,
                         const ExecContext& context, std::vector<KernelChoice>& choices) {
  if (fuses(plan, names, context)) {
    choices.push_back(explain_kda_decode_step(step_params(plan), context));
    return;
  }
  const ConstTensorView& parent = plan.segment.parent;
  switch (plan.segment.kind) {
    case RowKind::kDecode:
      choices.push_back(explain_causal_conv1d_update(plan.conv, context, names.conv));
      choices.push_back(
          replays(plan) ? explain_kda_decode_replay(replay_params(plan), context, names.attention)
                        : explain_kda_decode(plan.kda, context, names.attention));
      break;
    case RowKind::kVerify:
      choices.push_back(explain_causal_conv1d_verify({plan.conv, parent}, context, names.conv));
      choices.push_back(
          explain_kda_verify({plan.kda, parent, plan.record}, context, names.attention));
      break;
    default:
      choices.push_back(explain_causal_conv1d_prefill(plan.conv, context, names.conv));
      choices.push_back(explain_kda_prefill(plan.kda, context, names.attention));
      break;
  }
  if (plan.norm) choices.push_back(explain_gated_rms_norm(plan.gated_norm, context, names.norm));
}

}  // namespace linestate
