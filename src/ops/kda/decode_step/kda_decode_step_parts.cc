#include "ops/kda/decode_step/kda_decode_step_parts.h"

#include "base/device_status.h"
#include "base/element.h"
#include "base/row_access.h"
#include "cpu/scratch.h"
#include "ops/kda/decode/kda_decode_kernels.h"
#include "ops/kda/decode_step/kda_decode_step_kernels.h"

namespace linestate {

int64_t kda_step_heads(const KdaDecodeStepParams& params) {
  const int64_t values = params.state.shape[1] * params.state.shape[2];
  const int64_t keys = params.x.shape[1] - values;
  const int64_t each = 2 * params.state.shape[3];
  return each > 0 && keys > 0 && keys % each == 0 ? keys / each : 0;
}

KdaParams kda_step_recurrence(const KdaDecodeStepParams& params, const ConstTensorView& packed) {
  const int64_t K = params.state.shape[3];
  const int64_t key_width = kda_step_heads(params) * K;
  KdaParams kda;
  kda.rows = params.rows;
  kda.q = packed.slice(1, 0, key_width).split(1, K);
  kda.k = packed.slice(1, key_width, 2 * key_width).split(1, K);
  kda.v = packed.slice(1, 2 * key_width, packed.shape[1]).split(1, params.state.shape[2]);
  kda.gate = params.gate;
  kda.beta = params.beta;
  kda.gate_form = params.gate_form;
  kda.beta_form = params.beta_form;
  kda.A_log = params.A_log;
  kda.dt_bias = params.dt_bias;
  kda.lower_bound = params.lower_bound;
  kda.scale = params.scale;
  kda.qk_normalized = params.qk_normalized;
  kda.state = params.state;
  kda.out = params.out;
  kda.snapshots = params.snapshots;
  kda.layer = params.layer;
  return kda;
}

KdaStepParts kda_step_parts(const KdaDecodeStepParams& params, void* memory, Device device) {
  Scratch scratch(memory);
  KdaStepParts parts;
  const int64_t N = params.x.shape[0];
  const int64_t channels = params.x.shape[1];
  void* conv_out = scratch.take<char>(N * channels * dtype_bytes(params.x.dtype));
  parts.conv.rows = params.rows;
  parts.conv.x = params.x;
  parts.conv.weight = params.conv_weight;
  parts.conv.bias = params.conv_bias;
  parts.conv.activation = params.activation;
  parts.conv.window = params.window;
  parts.conv.out = TensorView(conv_out, params.x.dtype, {N, channels}, device);
  parts.conv.snapshots = params.snapshots;
  parts.conv.layer = params.layer;
  parts.kda = kda_step_recurrence(params, parts.conv.out);
  if (params.norm_weight.defined()) {
    const auto& shape = params.state.shape;
    auto* a = scratch.take<float>(N * shape[1] * shape[2]);
    parts.kda.out = TensorView(a, DType::kF32, {N, shape[1], shape[2]}, device);
    parts.norm = {parts.kda.out, params.z, params.norm_weight, params.eps, params.out};
  }
  parts.bytes = scratch.bytes();
  return parts;
}

namespace {

/// The norm makes NaN of a padding row whose z is NaN.
void clear_empty_rows(const KdaDecodeStepParams& params) {
  const TensorView& out = params.out;
  for (int64_t n = 0; n < out.shape[0]; ++n) {
    if (read_decode_row(params.rows, n, params.state.shape[0]).valid > 0) continue;
    for (int64_t j = 0; j < out.shape[1]; ++j) {
      for (int64_t v = 0; v < out.shape[2]; ++v) {
        const int64_t at = n * out.stride[0] + j * out.stride[1] + v * out.stride[2];
        store_f32(out.data, out.dtype, at, 0.0f);
      }
    }
  }
}

/// kda_decode is the only one of the three that needs scratch of its own.
Status run_parts(const KdaDecodeStepParams& params, const ExecContext& context,
                 std::string_view kernel) {
  auto* memory = static_cast<char*>(context.workspace.data);
  const KdaStepParts parts = kda_step_parts(params, memory, context.device);
  ExecContext inner = context;
  inner.check_finite = false;  // of the outputs of the whole, below
  inner.workspace = {memory + parts.bytes, context.workspace.bytes - parts.bytes};
  LINESTATE_RETURN_IF_ERROR(causal_conv1d_update(parts.conv, inner, kernel));
  LINESTATE_RETURN_IF_ERROR(kda_decode(parts.kda, inner, kernel));
  if (params.norm_weight.defined()) {
    LINESTATE_RETURN_IF_ERROR(gated_rms_norm(parts.norm, inner, kernel));
    clear_empty_rows(params);
  }
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace

int64_t kda_decode_step_cpu_workspace(const KdaDecodeStepParams& params,
                                      const ExecContext& context) {
  const KdaStepParts parts = kda_step_parts(params, nullptr, context.device);
  return parts.bytes + kda_decode_cpu_workspace(parts.kda, context);
}

Status kda_decode_step_cpu(const KdaDecodeStepParams& params, const ExecContext& context) {
  return run_parts(params, context, "cpu");
}

int64_t kda_decode_step_ref_workspace(const KdaDecodeStepParams& params,
                                      const ExecContext& context) {
  const KdaStepParts parts = kda_step_parts(params, nullptr, context.device);
  return parts.bytes + kda_decode_ref_workspace(parts.kda, context);
}

Status kda_decode_step_ref(const KdaDecodeStepParams& params, const ExecContext& context) {
  return run_parts(params, context, "ref");
}

}  // namespace linestate
