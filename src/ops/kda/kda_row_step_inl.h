// One token on one row of the state, in f32: decode, verify, commit and replay share it. The order
// of additions is fixed, so the same token on the same row gives the same bits everywhere. Compiled
// once per instruction set, see cpu/simd_inl.h.
#if defined(LINESTATE_OPS_KDA_KDA_ROW_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESTATE_OPS_KDA_KDA_ROW_STEP_INL_H_
#undef LINESTATE_OPS_KDA_KDA_ROW_STEP_INL_H_
#else
#define LINESTATE_OPS_KDA_KDA_ROW_STEP_INL_H_
#endif

#include <cstdint>

#include "cpu/simd_pack_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

/// R rows of the state, a pitch apart: s [R, K] <- before * alpha; predicted[r] = s[r] k. `before`
/// is f32, bf16 or f16, and may be s if it is f32. alpha, key and s are in the order of packs of T.
template <int R, typename T>
HWY_INLINE void kda_decay_and_predict(const float* alpha, const float* key, int64_t K,
                                      const T* before, int64_t pitch, float* s, float* predicted) {
  Group sum[R];
  for (int r = 0; r < R; ++r) sum[r] = group_of(0.0f);
  for (int64_t k = 0; k < K; k += kGroup) {
    const Group decay = group_load(alpha + k);
    const Group with = group_load(key + k);
    for (int r = 0; r < R; ++r) {
      const Group decayed = pack_load(before + r * pitch + k) * decay;
      group_store(s + r * K + k, decayed);
      sum[r] = mul_add(decayed, with, sum[r]);
    }
  }
  for (int r = 0; r < R; ++r) predicted[r] = pack_sum<T>(sum[r]);
}

/// R rows: after <- s + u[r] k, read[r] = (s + u[r] k) q before it is rounded to T. `after` may be
/// s if it is f32. key, query and s are in the order of packs of T; a NaN among key and u has no
/// low bits (pack_store).
template <int R, typename T>
HWY_INLINE void kda_update_and_read(const float* key, const float* query, const float* u, int64_t K,
                                    const float* s, T* after, int64_t pitch, float* read,
                                    OverflowWatch<T>& watch) {
  Group sum[R];
  for (int r = 0; r < R; ++r) sum[r] = group_of(0.0f);
  for (int64_t k = 0; k < K; k += kGroup) {
    const Group with = group_load(key + k);
    const Group asked = group_load(query + k);
    for (int r = 0; r < R; ++r) {
      const Group updated = mul_add(group_of(u[r]), with, group_load(s + r * K + k));
      for (int i = 0; i < kGroupVecs; ++i) watch.see(updated.v[i]);
      pack_store(after + r * pitch + k, updated);
      sum[r] = mul_add(updated, asked, sum[r]);
    }
  }
  for (int r = 0; r < R; ++r) read[r] = pack_sum<T>(sum[r]);
}

/// s [K] <- s * alpha + u k, the bits of the two above.
HWY_INLINE void kda_decay_and_update(const float* alpha, const float* key, float u, int64_t K,
                                     float* s) {
  const Group weight = group_of(u);
  for (int64_t k = 0; k < K; k += kGroup) {
    const Group decayed = group_load(s + k) * group_load(alpha + k);
    group_store(s + k, mul_add(weight, group_load(key + k), decayed));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
