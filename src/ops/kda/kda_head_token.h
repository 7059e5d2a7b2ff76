// One token of one value head as the f32 rows see it; kda_math_inl.h reads it.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/element.h"
#include "linestate/ops/kda.h"

namespace linestate {

inline constexpr float kKdaNormEpsilon = 1e-6f;

/// Where the pieces of one token go.
struct KdaHeadToken {
  float* alpha;  // [K] exp(g)
  float* k;      // [K] k^
  float* q;      // [K] scale * q^
  float* v;      // [V]
  float beta = 0.0f;
  float k_inverse_norm = 1.0f;
};

/// What the gate of one value head needs besides a.
struct KdaGateHead {
  KdaGate form = KdaGate::kSoftplus;
  float exp_A = 1.0f;              // exp(A_log[j])
  float lower_bound = 0.0f;        // kBounded
  const float* dt_bias = nullptr;  // [K], null for kActivated
};

/// What does not change from token to token; dt_bias [K] is scratch, filled here.
inline KdaGateHead read_kda_gate_head(const KdaParams& p, int64_t j, float* dt_bias) {
  KdaGateHead head;
  head.form = p.gate_form;
  head.lower_bound = p.lower_bound;
  if (p.gate_form == KdaGate::kActivated) return head;
  head.exp_A = std::exp(load_f32(p.A_log.data, p.A_log.dtype, offset_of(p.A_log, j)));
  load_run(p.dt_bias.data, p.dt_bias.dtype, offset_of(p.dt_bias, j), p.dt_bias.stride[1],
           p.dt_bias.shape[1], dt_bias);
  head.dt_bias = dt_bias;
  return head;
}

/// The factor on q^: params.scale, or K^-0.5 when that is 0.
inline float kda_scale(const KdaParams& params) {
  if (params.scale != 0.0f) return params.scale;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(params.q.shape[2])));
}

}  // namespace linestate
