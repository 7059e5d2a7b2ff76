// One token of one value head as the f32 rows read it: norms, gate and beta applied.
#pragma once

#include <cstdint>

#include "base/element.h"
#include "ops/kda/kda_math.h"

namespace linestate {

/// Where the pieces of one token go.
struct KdaHeadToken {
  float* alpha;  // [K] exp(g)
  float* k;      // [K] k^
  float* q;      // [K] scale * q^
  float* v;      // [V]
  float beta = 0.0f;
  float k_inverse_norm = 1.0f;
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

/// Token t for value head j.
inline void read_kda_head_token(const KdaParams& p, const KdaGateHead& head, int64_t t, int64_t j,
                                KdaHeadToken& token) {
  const int64_t K = p.q.shape[2];
  const int64_t h = j / (p.v.shape[1] / p.q.shape[1]);
  load_run(p.gate.data, p.gate.dtype, offset_of(p.gate, t, j), p.gate.stride[2], K, token.alpha);
  kda_decay(head, token.alpha, K, token.alpha);
  load_run(p.k.data, p.k.dtype, offset_of(p.k, t, h), p.k.stride[2], K, token.k);
  load_run(p.q.data, p.q.dtype, offset_of(p.q, t, h), p.q.stride[2], K, token.q);
  token.k_inverse_norm = kda_inverse_norm(token.k, K, p.qk_normalized);
  const float q_factor = kda_scale(p) * kda_inverse_norm(token.q, K, p.qk_normalized);
  for (int64_t i = 0; i < K; ++i) token.k[i] *= token.k_inverse_norm;
  for (int64_t i = 0; i < K; ++i) token.q[i] *= q_factor;
  load_run(p.v.data, p.v.dtype, offset_of(p.v, t, j), p.v.stride[2], p.v.shape[2], token.v);
  token.beta = kda_beta(p.beta_form, load_f32(p.beta.data, p.beta.dtype, offset_of(p.beta, t, j)));
}

}  // namespace linestate
