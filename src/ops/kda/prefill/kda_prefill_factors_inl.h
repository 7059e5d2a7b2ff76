// The factors of a block of prefill. Compiled once per instruction set, see cpu/simd_inl.h.
#if defined(LINESTATE_OPS_KDA_PREFILL_FACTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESTATE_OPS_KDA_PREFILL_FACTORS_INL_H_
#undef LINESTATE_OPS_KDA_PREFILL_FACTORS_INL_H_
#else
#define LINESTATE_OPS_KDA_PREFILL_FACTORS_INL_H_
#endif

#include "ops/kda/kda_math_inl.h"
#include "ops/kda/prefill/kda_prefill_block.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

HWY_INLINE void read_block(const KdaParams& p, const KdaGateHead& head, const KdaSpan& span,
                           const KdaBlock& b) {
  for (int64_t i = 0; i < span.n; ++i) {
    KdaHeadToken token{b.alpha + i * b.K, b.k + i * b.K, b.q + i * b.K, nullptr};
    read_kda_factors(p, head, span.t + i, span.j, token);
    b.beta[i] = token.beta;
  }
}

// D_j <- D_j * alpha_i for J neighbouring j < i, then A_ij and Aqk_ij from them.
template <int J>
HWY_INLINE void decay_keys(const KdaBlock& b, int64_t i, int64_t j) {
  const float* alpha = b.alpha + i * b.K;
  const float* k_i = b.k + i * b.K;
  const float* q_i = b.q + i * b.K;
  float* D = b.D + j * b.K;
  Group kd[J], qd[J];
  for (int x = 0; x < J; ++x) kd[x] = qd[x] = group_of(0.0f);
  for (int64_t k = 0; k < b.K; k += kGroup) {
    for (int l = 0; l < kGroupVecs; ++l) {
      const int64_t at = k + int64_t{l} * kVecLanes;
      const Vec decay = vec_load(alpha + at);
      const Vec key = vec_load(k_i + at);
      const Vec query = vec_load(q_i + at);
      for (int x = 0; x < J; ++x) {
        const Vec decayed = hn::Mul(vec_load(D + x * b.K + at), decay);
        vec_store(D + x * b.K + at, decayed);
        kd[x].v[l] = hn::MulAdd(decayed, key, kd[x].v[l]);
        qd[x].v[l] = hn::MulAdd(decayed, query, qd[x].v[l]);
      }
    }
  }
  for (int x = 0; x < J; ++x) {
    b.A[i * kKdaBlock + j + x] = b.beta[i] * group_sum(kd[x]);
    b.Aqk[i * kKdaBlock + j + x] = group_sum(qd[x]);
  }
}

// Row i of D, P, PK and the diagonal of Aqk.
HWY_INLINE void enter_key(const KdaBlock& b, int64_t i, int64_t n) {
  const float* alpha = b.alpha + i * b.K;
  const float* k_i = b.k + i * b.K;
  const float* q_i = b.q + i * b.K;
  Group qk = group_of(0.0f);
  for (int64_t k = 0; k < b.K; k += kGroup) {
    const Group key = group_load(k_i + k);
    const Group query = group_load(q_i + k);
    const Group step = group_load(alpha + k);
    const Group P = i == 0 ? step : group_load(b.P + k) * step;
    group_store(b.P + k, P);
    group_store(b.D + i * b.K + k, key);
    group_store(b.PK + i * b.K + k, P * key);
    group_store(b.PK + (n + i) * b.K + k, P * query);
    qk = mul_add(key, query, qk);
  }
  b.Aqk[i * kKdaBlock + i] = group_sum(qk);
}

HWY_INLINE void make_factors(const KdaParams& p, const KdaGateHead& head, const KdaSpan& span,
                             const KdaBlock& b) {
  read_block(p, head, span, b);
  for (int64_t i = 0; i < span.n; ++i) {
    int64_t x = 0;
    for (; x + 2 <= i; x += 2) decay_keys<2>(b, i, x);
    if (x < i) decay_keys<1>(b, i, x);
    enter_key(b, i, span.n);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
