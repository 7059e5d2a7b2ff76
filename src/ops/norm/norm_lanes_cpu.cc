#include "ops/norm/norm_lanes_cpu.h"

#include "base/int_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm/norm_lanes_cpu.cc"
#include <hwy/foreach_target.h>

#include "cpu/simd_math_inl.h"
#include "cpu/simd_run_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

constexpr int64_t kPiece = 256;

HWY_INLINE void load_piece(const ConstRun& run, int64_t begin, int64_t count, float* out) {
  simd_load_run(run.data, run.dtype, run.offset + begin * run.stride, run.stride, count, out);
}

float sum_sq(const ConstRun& x, int64_t n) {
  Group sum = group_of(0.0f);
  HWY_ALIGN float values[kPiece];
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t count = min_i64(kPiece, n - begin);
    load_piece(x, begin, count, values);
    // Zeros fill the last group: adding +0 to a sum of squares changes nothing.
    const int64_t padded = round_up(count, kGroup);
    for (int64_t i = count; i < padded; ++i) values[i] = 0.0f;
    for (int64_t i = 0; i < padded; i += kGroup) {
      const Group part = group_load(values + i);
      sum = mul_add(part, part, sum);
    }
  }
  return group_sum(sum);
}

void scale(const ConstRun& x, float factor, const ConstRun& weight, const ConstRun& gate,
           const Run& out, int64_t n) {
  HWY_ALIGN float values[kPiece];
  HWY_ALIGN float other[kPiece];
  const Vec factors = vec_of(factor);
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    // Vectors run into the padding behind `count`: what is computed there is not stored.
    const int64_t count = min_i64(kPiece, n - begin);
    const int64_t padded = round_up(count, kGroup);
    for (int64_t i = count; i < padded; ++i) values[i] = other[i] = 0.0f;
    load_piece(x, begin, count, values);
    load_piece(weight, begin, count, other);
    for (int64_t i = 0; i < padded; i += kVecLanes) {
      const Vec scaled = hn::Mul(hn::Mul(vec_load(values + i), factors), vec_load(other + i));
      vec_store(values + i, scaled);
    }
    if (gate.data != nullptr) {
      load_piece(gate, begin, count, other);
      for (int64_t i = 0; i < padded; i += kVecLanes) {
        vec_store(values + i, hn::Mul(vec_load(values + i), vec_sigmoid(vec_load(other + i))));
      }
    }
    simd_store_run(out.data, out.dtype, out.offset + begin * out.stride, out.stride, count, values);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(sum_sq);
HWY_EXPORT(scale);

float norm_sum_sq(const ConstRun& x, int64_t n) { return HWY_DYNAMIC_DISPATCH(sum_sq)(x, n); }

void norm_scale(const ConstRun& x, float factor, const ConstRun& weight, const ConstRun& gate,
                const Run& out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(scale)(x, factor, weight, gate, out, n);
}

}  // namespace linestate
#endif
