#include "base/check.h"
#include "ops/common/snapshot_access.h"
#include "ops/kda/decode_step/kda_decode_step_kernels.h"
#include "ops/kda/decode_step/kda_decode_step_parts.h"
#include "ops/kda/kda_check.h"

namespace linestate {
namespace {

struct Named {
  const char* name;
  ConstTensorView tensor;
};

Status check_channels(const KdaDecodeStepParams& p) {
  LINESTATE_RETURN_IF_ERROR(
      check_shape("state", p.state, {kAnySize, kAnySize, kAnySize, kAnySize}));
  LINESTATE_RETURN_IF_ERROR(check_head_dim("state: V", p.state.shape[2]));
  LINESTATE_RETURN_IF_ERROR(check_head_dim("state: K", p.state.shape[3]));
  LINESTATE_RETURN_IF_ERROR(check_shape("x", p.x, {kAnySize, kAnySize}));
  if (kda_step_heads(p) > 0) return {};
  return invalid_argument("x: expected 2 H K + HV V channels with HV = ", p.state.shape[1],
                          ", V = ", p.state.shape[2], ", K = ", p.state.shape[3], ", got ",
                          describe(p.x));
}

Status check_convolution(const KdaDecodeStepParams& p, const ExecContext& context) {
  const int64_t channels = p.x.shape[1];
  LINESTATE_RETURN_IF_ERROR(check_placement("x", p.x, context));
  LINESTATE_RETURN_IF_ERROR(check_shape("conv_weight", p.conv_weight, {channels, kAnySize}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("conv_weight", p.conv_weight));
  LINESTATE_RETURN_IF_ERROR(check_placement("conv_weight", p.conv_weight, context));
  const int64_t width = p.conv_weight.shape[1];
  if (width < 2 || width > 4) {
    return invalid_argument("conv_weight: expected a width of 2 to 4, got ", width);
  }
  if (p.conv_bias.defined()) {
    LINESTATE_RETURN_IF_ERROR(check_shape("conv_bias", p.conv_bias, {channels}));
    LINESTATE_RETURN_IF_ERROR(check_compute_dtype("conv_bias", p.conv_bias));
    LINESTATE_RETURN_IF_ERROR(check_placement("conv_bias", p.conv_bias, context));
  }
  if (p.activation != Activation::kNone && p.activation != Activation::kSilu) {
    return invalid_argument("activation: expected none (0) or silu (1), got ",
                            static_cast<int>(p.activation));
  }
  LINESTATE_RETURN_IF_ERROR(
      check_shape("window", p.window, {p.state.shape[0], channels, width - 1}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("window", p.window, {p.x.dtype, DType::kF32}));
  LINESTATE_RETURN_IF_ERROR(check_placement("window", p.window, context));
  return check_no_self_overlap("window", p.window);
}

Status check_norm(const KdaDecodeStepParams& p, const ExecContext& context) {
  if (p.norm_weight.defined() != p.z.defined()) {
    return invalid_argument("z: expected exactly when norm_weight is given, got z ", describe(p.z),
                            " and norm_weight ", describe(p.norm_weight));
  }
  if (!p.z.defined()) return {};
  LINESTATE_RETURN_IF_ERROR(check_shape("norm_weight", p.norm_weight, {p.state.shape[2]}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("norm_weight", p.norm_weight));
  LINESTATE_RETURN_IF_ERROR(check_placement("norm_weight", p.norm_weight, context));
  LINESTATE_RETURN_IF_ERROR(
      check_shape("z", p.z, {p.x.shape[0], p.state.shape[1], p.state.shape[2]}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("z", p.z));
  LINESTATE_RETURN_IF_ERROR(check_placement("z", p.z, context));
  if (p.eps > 0.0f) return {};
  return invalid_argument("eps: expected > 0, got ", p.eps);
}

/// What the recurrence's own check has not seen: the window, and out against the other tensors.
Status check_memory(const KdaDecodeStepParams& p) {
  const Named inputs[] = {{"x", p.x},
                          {"conv_weight", p.conv_weight},
                          {"conv_bias", p.conv_bias},
                          {"gate", p.gate},
                          {"beta", p.beta},
                          {"norm_weight", p.norm_weight},
                          {"z", p.z},
                          {"rows.slot", p.rows.slot},
                          {"rows.start", p.rows.start},
                          {"rows.num_valid", p.rows.num_valid}};
  for (const Named& output : {Named{"window", p.window}, {"state", p.state}, {"out", p.out}}) {
    for (const Named& input : inputs) {
      if (!input.tensor.defined()) continue;
      LINESTATE_RETURN_IF_ERROR(
          check_no_overlap(output.name, output.tensor, input.name, input.tensor));
    }
  }
  LINESTATE_RETURN_IF_ERROR(check_no_overlap("window", p.window, "state", p.state));
  LINESTATE_RETURN_IF_ERROR(check_no_overlap("out", p.out, "window", p.window));
  return check_snapshots_apart(p.snapshots, "window", p.window);
}

Status check(const KdaDecodeStepParams& p, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_channels(p));
  LINESTATE_RETURN_IF_ERROR(check_convolution(p, context));
  LINESTATE_RETURN_IF_ERROR(check_norm(p, context));
  LINESTATE_RETURN_IF_ERROR(check_kda_decode(kda_step_recurrence(p, p.x), context));
  return check_memory(p);
}

}  // namespace

const OpTable<KdaDecodeStepParams>& kda_decode_step_table() {
  static constexpr OpTable<KdaDecodeStepParams> kTable{"kda_decode_step", kKdaDecodeStepRows,
                                                       check};
  return kTable;
}

Status kda_decode_step(const KdaDecodeStepParams& params, const ExecContext& context,
                       std::string_view kernel) {
  return run_op(kda_decode_step_table(), params, context, kernel);
}

Result<int64_t> kda_decode_step_workspace_bytes(const KdaDecodeStepParams& params,
                                                const ExecContext& context,
                                                std::string_view kernel) {
  return op_workspace_bytes(kda_decode_step_table(), params, context, kernel);
}

KernelChoice explain_kda_decode_step(const KdaDecodeStepParams& params, const ExecContext& context,
                                     std::string_view kernel) {
  return explain_op(kda_decode_step_table(), params, context, kernel);
}

}  // namespace linestate
