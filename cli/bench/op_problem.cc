// Single operators: tokens against states.
#include <utility>

#include "cli/bench/bench_problem_parts.h"
#include "linestate/ops/kda_verify.h"
#include "linestate/ops/lightning_verify.h"

namespace linestate::cli {

GateFill gate_fill(const BenchSpec& spec) {
  if (spec.layer.gate_form == KdaGate::kActivated) return {0.01, -0.1};
  // Slow and strong weights hold what they promise only around 0; see gate_noise in profile.cc.
  return spec.profile == Profile::kPlain ? GateFill{1.0, -1.0} : GateFill{0.25, 0.0};
}

KdaParams shared_kda_params(TensorMaker& make, const BenchSpec& spec,
                            const LayerWeightTensors& weights, int64_t slots) {
  const HeadShape& heads = spec.layer.heads;
  KdaParams params;
  params.gate_form = spec.layer.gate_form;
  params.beta_form = spec.layer.beta_form;
  params.lower_bound = spec.layer.lower_bound;
  params.A_log = make.copy(weights.A_log);
  params.dt_bias = make.copy(weights.dt_bias);
  params.state =
      make.normal(spec.state_dtype, {slots, heads.num_value_heads, heads.v_dim, heads.k_dim});
  return params;
}

KdaParams kda_params(TensorMaker& make, const BenchSpec& spec, const KdaParams& shared) {
  const HeadShape& heads = spec.layer.heads;
  const int64_t tokens = spec.layout.total();
  const GateFill gate = gate_fill(spec);
  KdaParams params = shared;
  params.q = make.normal(spec.io_dtype, {tokens, heads.num_heads, heads.k_dim});
  params.k = make.normal(spec.io_dtype, {tokens, heads.num_heads, heads.k_dim});
  params.v = make.normal(spec.io_dtype, {tokens, heads.num_value_heads, heads.v_dim});
  params.gate = make.normal(spec.io_dtype, {tokens, heads.num_value_heads, heads.k_dim}, gate.scale,
                            gate.mean);
  params.beta = make.normal(spec.io_dtype, {tokens, heads.num_value_heads});
  params.out = make.zeros(spec.io_dtype, {tokens, heads.num_value_heads, heads.v_dim});
  return params;
}

LightningParams shared_lightning_params(TensorMaker& make, const BenchSpec& spec,
                                        const LayerWeightTensors& weights, int64_t slots) {
  const HeadShape& heads = spec.layer.heads;
  LightningParams params;
  params.slopes = make.copy(weights.slopes);
  params.scale = lightning_scale(spec.layer.variant, heads.k_dim);
  params.state = make.normal(spec.state_dtype, {slots, heads.num_heads, heads.k_dim, heads.v_dim});
  return params;
}

LightningParams lightning_params(TensorMaker& make, const BenchSpec& spec,
                                 const LightningParams& shared) {
  const int64_t heads = spec.layer.heads.num_heads;
  const int64_t dim = spec.layer.heads.k_dim;
  const int64_t tokens = spec.layout.total();
  LightningParams params = shared;
  params.q = make.normal(spec.io_dtype, {tokens, heads, dim});
  params.k = make.normal(spec.io_dtype, {tokens, heads, dim}, 0.3);
  params.v = make.normal(spec.io_dtype, {tokens, heads, dim});
  params.out = make.zeros(spec.io_dtype, {tokens, heads, dim});
  return params;
}

namespace {

BenchProblem kda_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec,
                         const LayerWeightTensors& weights) {
  const KdaParams shared = shared_kda_params(make, spec, weights, parts->rows.slots);
  const auto one_set = [&] { return kda_params(make, spec, shared); };
  const auto set_call = [rows = parts->rows](KdaParams& params, int64_t call) {
    params.rows = rows.of_call(call);
  };
  if (spec.op.phase == BenchPhase::kPrompt) {
    return finish<KdaParams>(parts, make, one_set, set_call,
                             {kda_prefill, explain_kda_prefill, kda_prefill_workspace_bytes});
  }
  if (spec.op.phase == BenchPhase::kStep) {
    return finish<KdaParams>(parts, make, one_set, set_call,
                             {kda_decode, explain_kda_decode, kda_decode_workspace_bytes});
  }
  const HeadShape& heads = spec.layer.heads;
  const int64_t tokens = spec.layout.total();
  const auto draft_set = [&] {
    KdaVerifyParams verify;
    verify.kda = one_set();
    verify.record.u = make.zeros(DType::kF32, {tokens, heads.num_value_heads, heads.v_dim});
    verify.record.k = make.zeros(spec.io_dtype, {tokens, heads.num_heads, heads.k_dim});
    verify.record.k_inverse_norm = make.zeros(DType::kF32, {tokens, heads.num_heads});
    verify.record.alpha = make.zeros(DType::kF32, {tokens, heads.num_value_heads, heads.k_dim});
    return verify;
  };
  return finish<KdaVerifyParams>(
      parts, make, draft_set,
      [set_call](KdaVerifyParams& params, int64_t call) { set_call(params.kda, call); },
      {kda_verify, explain_kda_verify, kda_verify_workspace_bytes});
}

BenchProblem lightning_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec,
                               const LayerWeightTensors& weights) {
  const LightningParams shared = shared_lightning_params(make, spec, weights, parts->rows.slots);
  const auto one_set = [&] { return lightning_params(make, spec, shared); };
  const auto set_call = [rows = parts->rows](LightningParams& params, int64_t call) {
    params.rows = rows.of_call(call);
  };
  if (spec.op.phase == BenchPhase::kPrompt) {
    return finish<LightningParams>(
        parts, make, one_set, set_call,
        {lightning_prefill, explain_lightning_prefill, lightning_prefill_workspace_bytes});
  }
  if (spec.op.phase == BenchPhase::kStep) {
    return finish<LightningParams>(
        parts, make, one_set, set_call,
        {lightning_decode, explain_lightning_decode, lightning_decode_workspace_bytes});
  }
  const HeadShape& heads = spec.layer.heads;
  const int64_t tokens = spec.layout.total();
  const auto draft_set = [&] {
    LightningVerifyParams verify;
    verify.lightning = one_set();
    verify.record.k = make.zeros(spec.io_dtype, {tokens, heads.num_heads, heads.k_dim});
    verify.record.v = make.zeros(spec.io_dtype, {tokens, heads.num_heads, heads.k_dim});
    return verify;
  };
  return finish<LightningVerifyParams>(
      parts, make, draft_set,
      [set_call](LightningVerifyParams& params, int64_t call) { set_call(params.lightning, call); },
      {lightning_verify, explain_lightning_verify, lightning_verify_workspace_bytes});
}

}  // namespace

Result<BenchProblem> make_op_problem(BenchDevice& device, const BenchSpec& spec, BenchRows rows) {
  const Result<LayerWeightTensors> weights =
      make_weights(spec.layer, spec.model_layers, {}, spec.profile, 1);
  if (!weights.ok()) return weights.status();
  auto parts = std::make_shared<OpParts>();
  parts->rows = std::move(rows);
  parts->context = device.context(spec.threads);
  parts->kernel = spec.kernel;
  if (device.rotates_tokens()) parts->sets = parts->rows.groups();
  TensorMaker make(device, parts->tensors);
  BenchProblem problem;
  if (spec.op.name.starts_with("causal_conv1d")) {
    problem = conv_problem(parts, make, spec, *weights);
  } else if (spec.op.name.ends_with("_rms_norm")) {
    problem = norm_problem(parts, make, spec, *weights);
  } else if (spec.op.name.starts_with("state_")) {
    problem = state_problem(parts, make, spec);
  } else if (spec.op.name.ends_with("_commit")) {
    problem = commit_problem(parts, make, spec, *weights);
  } else if (is_ring_op(spec.op)) {
    problem = ring_problem(parts, make, spec, *weights);
  } else if (spec.op.layer == LayerKind::kKda) {
    problem = kda_problem(parts, make, spec, *weights);
  } else {
    problem = lightning_problem(parts, make, spec, *weights);
  }
  LINESTATE_RETURN_IF_ERROR(make.status());
  return problem;
}

}  // namespace linestate::cli
