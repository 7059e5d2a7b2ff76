#include "ops/kda/kda_check.h"

#include <cmath>

#include "base/check.h"

namespace linestate {
namespace {

struct Named {
  const char* name;
  const ConstTensorView& tensor;
};

Status check_sizes(const KdaParams& p) {
  LINESTATE_RETURN_IF_ERROR(check_shape("q", p.q, {kAnySize, kAnySize, kAnySize}));
  const int64_t T = p.q.shape[0];
  const int64_t H = p.q.shape[1];
  const int64_t K = p.q.shape[2];
  LINESTATE_RETURN_IF_ERROR(check_shape("k", p.k, {T, H, K}));
  LINESTATE_RETURN_IF_ERROR(check_shape("v", p.v, {T, kAnySize, kAnySize}));
  const int64_t HV = p.v.shape[1];
  const int64_t V = p.v.shape[2];
  LINESTATE_RETURN_IF_ERROR(check_head_dim("q: K", K));
  LINESTATE_RETURN_IF_ERROR(check_head_dim("v: V", V));
  if (H < 1) return invalid_argument("q: expected at least one head, got ", H);
  if (HV < 1 || HV % H != 0) {
    return invalid_argument("v: expected a multiple of the ", H, " heads of q, got ", HV,
                            " value heads");
  }
  LINESTATE_RETURN_IF_ERROR(check_shape("gate", p.gate, {T, HV, K}));
  LINESTATE_RETURN_IF_ERROR(check_shape("beta", p.beta, {T, HV}));
  LINESTATE_RETURN_IF_ERROR(check_shape("state", p.state, {kAnySize, HV, V, K}));
  LINESTATE_RETURN_IF_ERROR(check_shape("out", p.out, {T, HV, V}));
  if (p.gate_form == KdaGate::kActivated) return {};
  LINESTATE_RETURN_IF_ERROR(check_shape("A_log", p.A_log, {HV}));
  return check_shape("dt_bias", p.dt_bias, {HV, K});
}

Status check_dtypes(const KdaParams& p) {
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("q", p.q));
  LINESTATE_RETURN_IF_ERROR(check_dtype("k", p.k, {p.q.dtype}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("v", p.v, {p.q.dtype}));
  for (const Named& input : {Named{"gate", p.gate}, Named{"beta", p.beta}}) {
    if (p.q.dtype == DType::kF32) {
      LINESTATE_RETURN_IF_ERROR(check_dtype(input.name, input.tensor, {DType::kF32}));
    } else {
      LINESTATE_RETURN_IF_ERROR(check_dtype(input.name, input.tensor, {p.q.dtype, DType::kF32}));
    }
  }
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("state", p.state));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("out", p.out));
  if (p.gate_form == KdaGate::kActivated) return {};
  LINESTATE_RETURN_IF_ERROR(check_dtype("A_log", p.A_log, {DType::kF32}));
  return check_dtype("dt_bias", p.dt_bias, {DType::kF32});
}

Status check_options(const KdaParams& p) {
  switch (p.gate_form) {
    case KdaGate::kBounded:
      if (std::isfinite(p.lower_bound) && p.lower_bound < 0.0f) break;
      return invalid_argument("lower_bound: expected a finite value < 0 for the bounded gate, got ",
                              p.lower_bound);
    case KdaGate::kSoftplus:
    case KdaGate::kActivated:
      if (p.lower_bound == 0.0f) break;
      return invalid_argument("lower_bound: expected 0 unless the gate is bounded, got ",
                              p.lower_bound);
    default:
      return invalid_argument("gate_form: expected softplus, bounded or activated, got ",
                              static_cast<int>(p.gate_form));
  }
  if (p.beta_form != KdaBeta::kLogits && p.beta_form != KdaBeta::kProbability) {
    return invalid_argument("beta_form: expected logits or probability, got ",
                            static_cast<int>(p.beta_form));
  }
  if (!std::isfinite(p.scale)) {
    return invalid_argument("scale: expected a finite value, got ", p.scale);
  }
  return {};
}

Status check_memory(const KdaParams& p, const ExecContext& context) {
  const ConstTensorView state = p.state;
  const ConstTensorView out = p.out;
  const Named inputs[] = {{"q", p.q},
                          {"k", p.k},
                          {"v", p.v},
                          {"gate", p.gate},
                          {"beta", p.beta},
                          {"A_log", p.A_log},
                          {"dt_bias", p.dt_bias},
                          {"rows.slot", p.rows.slot},
                          {"rows.query_start_loc", p.rows.query_start_loc},
                          {"rows.start", p.rows.start},
                          {"rows.num_valid", p.rows.num_valid}};
  LINESTATE_RETURN_IF_ERROR(check_placement("state", state, context));
  LINESTATE_RETURN_IF_ERROR(check_placement("out", out, context));
  LINESTATE_RETURN_IF_ERROR(check_no_self_overlap("state", state));
  LINESTATE_RETURN_IF_ERROR(check_no_self_overlap("out", out));
  LINESTATE_RETURN_IF_ERROR(check_no_overlap("out", out, "state", state));
  for (const Named& input : inputs) {
    const bool gate_vector = &input.tensor == &p.A_log || &input.tensor == &p.dt_bias;
    if (!input.tensor.defined() || (gate_vector && p.gate_form == KdaGate::kActivated)) continue;
    LINESTATE_RETURN_IF_ERROR(check_placement(input.name, input.tensor, context));
    LINESTATE_RETURN_IF_ERROR(check_no_overlap("out", out, input.name, input.tensor));
    LINESTATE_RETURN_IF_ERROR(check_no_overlap("state", state, input.name, input.tensor));
  }
  return {};
}

}  // namespace

Status check_kda_tensors(const KdaParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_options(params));
  LINESTATE_RETURN_IF_ERROR(check_sizes(params));
  LINESTATE_RETURN_IF_ERROR(check_dtypes(params));
  return check_memory(params, context);
}

Status check_kda_prefill(const KdaParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_kda_tensors(params, context));
  return check_prefill_rows(params.rows, params.q.shape[0], params.state.shape[0], context);
}

Status check_kda_decode(const KdaParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_kda_tensors(params, context));
  return check_decode_rows(params.rows, params.q.shape[0], params.state.shape[0], context);
}

}  // namespace linestate
