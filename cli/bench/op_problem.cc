// Single operators.
#include <utility>

#include "cli/bench/bench_problem_parts.h"
#include "linestate/ops/kda_verify.h"
#include "linestate/ops/lightning_verify.h"
#include "linestate/ops/norm.h"

namespace linestate::cli {
namespace {

// What a closure over a problem keeps alive.
struct Parts {
  std::vector<BenchTensor> tensors;
  BenchRows rows;
  ExecContext context;
  std::string kernel;
};

// The problem of an operator whose params are `params` but for the rows of the call.
template <typename Params, typename SetRows>
BenchProblem finish(const std::shared_ptr<Parts>& parts, Params params, const SetRows& set_rows,
                    Status (*op)(const Params&, const ExecContext&, std::string_view),
                    KernelChoice (*explain)(const Params&, const ExecContext&, std::string_view)) {
  BenchProblem problem;
  set_rows(params, parts->rows.of_call(0));
  problem.kernel = explain(params, parts->context, parts->kernel).kernel;
  problem.run = [parts, params, set_rows, op](int64_t call) mutable {
    set_rows(params, parts->rows.of_call(call));
    return op(params, parts->context, parts->kernel);
  };
  return problem;
}

KdaParams kda_params(TensorMaker& make, const BenchSpec& spec, const LayerWeightTensors& weights,
                     const BenchRows& rows) {
  const HeadShape& heads = spec.layer.heads;
  const int64_t tokens = spec.layout.total();
  KdaParams params;
  params.rows = rows.of_call(0);
  params.q = make.normal(spec.io_dtype, {tokens, heads.num_heads, heads.k_dim});
  params.k = make.normal(spec.io_dtype, {tokens, heads.num_heads, heads.k_dim});
  params.v = make.normal(spec.io_dtype, {tokens, heads.num_value_heads, heads.v_dim});
  params.gate = make.normal(spec.io_dtype, {tokens, heads.num_value_heads, heads.k_dim}, 1.0, -1.0);
  params.beta = make.normal(spec.io_dtype, {tokens, heads.num_value_heads});
  params.gate_form = spec.layer.gate_form;
  params.beta_form = spec.layer.beta_form;
  params.lower_bound = spec.layer.lower_bound;
  params.A_log = make.copy(weights.A_log);
  params.dt_bias = make.copy(weights.dt_bias);
  params.state =
      make.normal(spec.state_dtype, {rows.slots, heads.num_value_heads, heads.v_dim, heads.k_dim});
  params.out = make.zeros(spec.io_dtype, {tokens, heads.num_value_heads, heads.v_dim});
  return params;
}

LightningParams lightning_params(TensorMaker& make, const BenchSpec& spec,
                                 const LayerWeightTensors& weights, const BenchRows& rows) {
  const int64_t heads = spec.layer.heads.num_heads;
  const int64_t dim = spec.layer.heads.k_dim;
  const int64_t tokens = spec.layout.total();
  LightningParams params;
  params.rows = rows.of_call(0);
  params.q = make.normal(spec.io_dtype, {tokens, heads, dim});
  params.k = make.normal(spec.io_dtype, {tokens, heads, dim}, 0.3);
  params.v = make.normal(spec.io_dtype, {tokens, heads, dim});
  params.slopes = make.copy(weights.slopes);
  params.scale = lightning_scale(spec.layer.variant, dim);
  params.state = make.normal(spec.state_dtype, {rows.slots, heads, dim, dim});
  params.out = make.zeros(spec.io_dtype, {tokens, heads, dim});
  return params;
}

BenchProblem kda_problem(const std::shared_ptr<Parts>& parts, TensorMaker& make,
                         const BenchSpec& spec, const LayerWeightTensors& weights) {
  const KdaParams params = kda_params(make, spec, weights, parts->rows);
  const auto set_rows = [](KdaParams& p, const RowTensors& rows) { p.rows = rows; };
  if (!make.status().ok()) return {};
  if (spec.op.phase == BenchPhase::kPrompt) {
    make.workspace(kda_prefill_workspace_bytes(params, parts->context, parts->kernel),
                   parts->context);
    return finish(parts, params, set_rows, kda_prefill, explain_kda_prefill);
  }
  if (spec.op.phase == BenchPhase::kStep) {
    make.workspace(kda_decode_workspace_bytes(params, parts->context, parts->kernel),
                   parts->context);
    return finish(parts, params, set_rows, kda_decode, explain_kda_decode);
  }
  const HeadShape& heads = spec.layer.heads;
  const int64_t tokens = spec.layout.total();
  KdaVerifyParams verify;
  verify.kda = params;
  verify.record.u = make.zeros(DType::kF32, {tokens, heads.num_value_heads, heads.v_dim});
  verify.record.k = make.zeros(spec.io_dtype, {tokens, heads.num_heads, heads.k_dim});
  verify.record.k_inverse_norm = make.zeros(DType::kF32, {tokens, heads.num_heads});
  verify.record.alpha = make.zeros(DType::kF32, {tokens, heads.num_value_heads, heads.k_dim});
  if (!make.status().ok()) return {};
  make.workspace(kda_verify_workspace_bytes(verify, parts->context, parts->kernel), parts->context);
  return finish(
      parts, verify, [](KdaVerifyParams& p, const RowTensors& rows) { p.kda.rows = rows; },
      kda_verify, explain_kda_verify);
}

BenchProblem lightning_problem(const std::shared_ptr<Parts>& parts, TensorMaker& make,
                               const BenchSpec& spec, const LayerWeightTensors& weights) {
  const LightningParams params = lightning_params(make, spec, weights, parts->rows);
  const auto set_rows = [](LightningParams& p, const RowTensors& rows) { p.rows = rows; };
  if (!make.status().ok()) return {};
  if (spec.op.phase == BenchPhase::kPrompt) {
    make.workspace(lightning_prefill_workspace_bytes(params, parts->context, parts->kernel),
                   parts->context);
    return finish(parts, params, set_rows, lightning_prefill, explain_lightning_prefill);
  }
  if (spec.op.phase == BenchPhase::kStep) {
    make.workspace(lightning_decode_workspace_bytes(params, parts->context, parts->kernel),
                   parts->context);
    return finish(parts, params, set_rows, lightning_decode, explain_lightning_decode);
  }
  LightningVerifyParams verify;
  verify.lightning = params;
  verify.record.k = make.zeros(
      spec.io_dtype, {spec.layout.total(), spec.layer.heads.num_heads, spec.layer.heads.k_dim});
  verify.record.v = make.zeros(
      spec.io_dtype, {spec.layout.total(), spec.layer.heads.num_heads, spec.layer.heads.k_dim});
  if (!make.status().ok()) return {};
  make.workspace(lightning_verify_workspace_bytes(verify, parts->context, parts->kernel),
                 parts->context);
  return finish(
      parts, verify,
      [](LightningVerifyParams& p, const RowTensors& rows) { p.lightning.rows = rows; },
      lightning_verify, explain_lightning_verify);
}

BenchProblem conv_problem(const std::shared_ptr<Parts>& parts, TensorMaker& make,
                          const BenchSpec& spec, const LayerWeightTensors& weights) {
  const int64_t channels = spec.layer.conv_channels();
  const int64_t tokens = spec.layout.total();
  CausalConv1dParams params;
  params.rows = parts->rows.of_call(0);
  params.x = make.normal(spec.io_dtype, {tokens, channels});
  params.weight = make.copy(weights.conv_weight);
  params.activation = spec.layer.conv_activation;
  // Tap-major, as pools hold windows.
  params.window =
      make.normal(spec.io_dtype, {parts->rows.slots, spec.layer.conv_width - 1, channels});
  params.out = make.zeros(spec.io_dtype, {tokens, channels});
  if (!make.status().ok()) return {};
  params.window = params.window.transpose(1, 2);
  const auto set_rows = [](CausalConv1dParams& p, const RowTensors& rows) { p.rows = rows; };
  if (spec.op.phase == BenchPhase::kPrompt) {
    make.workspace(causal_conv1d_prefill_workspace_bytes(params, parts->context, parts->kernel),
                   parts->context);
    return finish(parts, params, set_rows, causal_conv1d_prefill, explain_causal_conv1d_prefill);
  }
  make.workspace(causal_conv1d_update_workspace_bytes(params, parts->context, parts->kernel),
                 parts->context);
  return finish(parts, params, set_rows, causal_conv1d_update, explain_causal_conv1d_update);
}

BenchProblem norm_problem(const std::shared_ptr<Parts>& parts, TensorMaker& make,
                          const BenchSpec& spec, const LayerWeightTensors& weights) {
  const HeadShape& heads = spec.layer.heads;
  const int64_t tokens = spec.layout.total();
  if (spec.op.layer == LayerKind::kKda) {
    GatedRmsNormParams params;
    params.x = make.normal(spec.io_dtype, {tokens, heads.num_value_heads, heads.v_dim});
    params.z = make.normal(spec.io_dtype, {tokens, heads.num_value_heads, heads.v_dim});
    params.weight = make.copy(weights.norm_weight);
    params.eps = spec.layer.norm_eps;
    params.out = make.zeros(spec.io_dtype, {tokens, heads.num_value_heads, heads.v_dim});
    if (!make.status().ok()) return {};
    return finish(
        parts, params, [](GatedRmsNormParams&, const RowTensors&) {}, gated_rms_norm,
        explain_gated_rms_norm);
  }
  const int64_t channels = spec.layer.out_channels();
  GroupRmsNormParams params;
  params.x = make.normal(spec.io_dtype, {tokens, channels});
  params.gate = make.normal(spec.io_dtype, {tokens, channels});
  params.weight = make.copy(weights.norm_weight);
  params.num_groups = spec.layer.norm_groups;
  params.eps = spec.layer.norm_eps;
  params.out = make.zeros(spec.io_dtype, {tokens, channels});
  if (!make.status().ok()) return {};
  return finish(
      parts, params, [](GroupRmsNormParams&, const RowTensors&) {}, group_rms_norm,
      explain_group_rms_norm);
}

}  // namespace

Result<BenchProblem> make_op_problem(BenchDevice& device, const BenchSpec& spec, BenchRows rows) {
  const Result<LayerWeightTensors> weights =
      make_weights(spec.layer, spec.model_layers, {}, Profile::kPlain, 1);
  if (!weights.ok()) return weights.status();
  auto parts = std::make_shared<Parts>();
  parts->rows = std::move(rows);
  parts->context = device.context(spec.threads);
  parts->kernel = spec.kernel;
  TensorMaker make(device, parts->tensors);
  BenchProblem problem;
  if (spec.op.name.starts_with("causal_conv1d")) {
    problem = conv_problem(parts, make, spec, *weights);
  } else if (spec.op.name.ends_with("_rms_norm")) {
    problem = norm_problem(parts, make, spec, *weights);
  } else if (spec.op.layer == LayerKind::kKda) {
    problem = kda_problem(parts, make, spec, *weights);
  } else {
    problem = lightning_problem(parts, make, spec, *weights);
  }
  LINESTATE_RETURN_IF_ERROR(make.status());
  return problem;
}

}  // namespace linestate::cli
