// Runs of elements: of a dtype that is known only at run time, and of f32 whose length is a
// multiple of kGroup. Compiled once per instruction set, see simd_inl.h.
#if defined(LINESTATE_CPU_SIMD_RUN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESTATE_CPU_SIMD_RUN_INL_H_
#undef LINESTATE_CPU_SIMD_RUN_INL_H_
#else
#define LINESTATE_CPU_SIMD_RUN_INL_H_
#endif

#include "base/element.h"
#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

/// n elements side by side, any n.
template <typename T>
HWY_INLINE void simd_widen(const T* in, DType dtype, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kVecLanes <= n; i += kVecLanes) vec_store(out + i, vec_load(in + i));
  if (i < n) load_run(in, dtype, i, 1, n - i, out + i);
}

/// load_run of base/element.h, in vectors where the stride allows.
HWY_INLINE void simd_load_run(const void* data, DType dtype, int64_t offset, int64_t stride,
                              int64_t n, float* out) {
  if (stride != 1) return load_run(data, dtype, offset, stride, n, out);
  switch (dtype) {
    case DType::kBF16:
      return simd_widen(static_cast<const hwy::bfloat16_t*>(data) + offset, dtype, n, out);
    case DType::kF16:
      return simd_widen(static_cast<const hwy::float16_t*>(data) + offset, dtype, n, out);
    default:
      return load_run(data, dtype, offset, 1, n, out);
  }
}

template <typename T>
HWY_INLINE bool simd_round(T* out, DType dtype, int64_t n, const float* values) {
  OverflowWatch<T> watch;
  int64_t i = 0;
  for (; i + kVecLanes <= n; i += kVecLanes) {
    const Vec x = vec_load(values + i);
    watch.see(x);
    vec_store(out + i, x);
  }
  const bool rest = i == n || store_run(out, dtype, i, 1, n - i, values + i);
  return rest && watch.saw_none();
}

/// store_run of base/element.h, in vectors where the stride allows.
HWY_INLINE bool simd_store_run(void* data, DType dtype, int64_t offset, int64_t stride, int64_t n,
                               const float* values) {
  if (stride != 1) return store_run(data, dtype, offset, stride, n, values);
  switch (dtype) {
    case DType::kBF16:
      return simd_round(static_cast<hwy::bfloat16_t*>(data) + offset, dtype, n, values);
    case DType::kF16:
      return simd_round(static_cast<hwy::float16_t*>(data) + offset, dtype, n, values);
    default:
      return store_run(data, dtype, offset, 1, n, values);
  }
}

/// product <- a * b; any of them may be another.
HWY_INLINE void run_multiply(const float* a, const float* b, int64_t n, float* product) {
  for (int64_t i = 0; i < n; i += kVecLanes) {
    vec_store(product + i, hn::Mul(vec_load(a + i), vec_load(b + i)));
  }
}

/// sum <- sum + factor * x.
HWY_INLINE void run_add_scaled(const float* x, float factor, int64_t n, float* sum) {
  for (int64_t i = 0; i < n; i += kVecLanes) {
    vec_store(sum + i, hn::MulAdd(vec_of(factor), vec_load(x + i), vec_load(sum + i)));
  }
}

/// a . b.
HWY_INLINE float run_dot(const float* a, const float* b, int64_t n) {
  Group sum = group_of(0.0f);
  for (int64_t i = 0; i < n; i += kGroup) {
    sum = mul_add(group_load(a + i), group_load(b + i), sum);
  }
  return group_sum(sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
