// The f32 maths that every CPU row of every KDA phase shares: one function for the decay, one for
// beta, one for the inverse norm, one way to read a token. Compiled once per instruction set, see
// cpu/simd_inl.h.
#if defined(LINESTATE_OPS_KDA_KDA_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESTATE_OPS_KDA_KDA_MATH_INL_H_
#undef LINESTATE_OPS_KDA_KDA_MATH_INL_H_
#else
#define LINESTATE_OPS_KDA_KDA_MATH_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "cpu/simd_math_inl.h"
#include "cpu/simd_run_inl.h"
#include "ops/kda/kda_head_token.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

/// The gate: alpha[k] = exp(g[k]) for k in [0, n) from the raw gate values a; n a multiple of 16.
/// alpha may be a.
HWY_INLINE void kda_decay(const KdaGateHead& head, const float* a, int64_t n, float* alpha) {
  const Vec exp_A = vec_of(head.exp_A);
  const Vec lower_bound = vec_of(head.lower_bound);
  switch (head.form) {
    case KdaGate::kSoftplus:
      for (int64_t k = 0; k < n; k += kVecLanes) {
        const Vec x = hn::Add(vec_load(a + k), vec_load(head.dt_bias + k));
        vec_store(alpha + k, vec_exp(hn::Neg(hn::Mul(exp_A, vec_softplus(x)))));
      }
      return;
    case KdaGate::kBounded:
      for (int64_t k = 0; k < n; k += kVecLanes) {
        const Vec x = hn::Add(vec_load(a + k), vec_load(head.dt_bias + k));
        vec_store(alpha + k, vec_exp(hn::Mul(lower_bound, vec_sigmoid(hn::Mul(exp_A, x)))));
      }
      return;
    default:
      for (int64_t k = 0; k < n; k += kVecLanes) vec_store(alpha + k, vec_exp(vec_load(a + k)));
  }
}

/// Beta from its tensor value.
HWY_INLINE float kda_beta(KdaBeta form, float b) {
  return form == KdaBeta::kLogits ? hn::GetLane(vec_sigmoid(vec_of(b))) : b;
}

/// rsqrt(sum x^2 + 1e-6) over n elements, n a multiple of 16; 1 when x is already normalised.
HWY_INLINE float kda_inverse_norm(const float* x, int64_t n, bool normalized) {
  if (normalized) return 1.0f;
  Group sum = group_of(0.0f);
  for (int64_t k = 0; k < n; k += kGroup) {
    const Group part = group_load(x + k);
    sum = mul_add(part, part, sum);
  }
  return 1.0f / std::sqrt(group_sum(sum) + kKdaNormEpsilon);
}

/// x [n] <- x * factor.
HWY_INLINE void kda_scale_run(float* x, int64_t n, float factor) {
  const Vec factors = vec_of(factor);
  for (int64_t k = 0; k < n; k += kVecLanes) vec_store(x + k, hn::Mul(vec_load(x + k), factors));
}

/// Gate, beta and norms of token t for value head j, v left out.
HWY_INLINE void read_kda_factors(const KdaParams& p, const KdaGateHead& head, int64_t t, int64_t j,
                                 KdaHeadToken& token) {
  const int64_t K = p.q.shape[2];
  const int64_t h = j / (p.v.shape[1] / p.q.shape[1]);
  simd_load_run(p.gate.data, p.gate.dtype, offset_of(p.gate, t, j), p.gate.stride[2], K,
                token.alpha);
  kda_decay(head, token.alpha, K, token.alpha);
  simd_load_run(p.k.data, p.k.dtype, offset_of(p.k, t, h), p.k.stride[2], K, token.k);
  simd_load_run(p.q.data, p.q.dtype, offset_of(p.q, t, h), p.q.stride[2], K, token.q);
  token.k_inverse_norm = kda_inverse_norm(token.k, K, p.qk_normalized);
  kda_scale_run(token.k, K, token.k_inverse_norm);
  kda_scale_run(token.q, K, kda_scale(p) * kda_inverse_norm(token.q, K, p.qk_normalized));
  token.beta = kda_beta(p.beta_form, load_f32(p.beta.data, p.beta.dtype, offset_of(p.beta, t, j)));
}

/// Token t for value head j.
HWY_INLINE void read_kda_head_token(const KdaParams& p, const KdaGateHead& head, int64_t t,
                                    int64_t j, KdaHeadToken& token) {
  read_kda_factors(p, head, t, j, token);
  simd_load_run(p.v.data, p.v.dtype, offset_of(p.v, t, j), p.v.stride[2], p.v.shape[2], token.v);
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
