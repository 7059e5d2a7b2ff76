// Elementary functions of the `cpu` rows: the only f32 exp there is. Compiled once per instruction
// set, see simd_inl.h.
#if defined(LINESTATE_CPU_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESTATE_CPU_SIMD_MATH_INL_H_
#undef LINESTATE_CPU_SIMD_MATH_INL_H_
#else
#define LINESTATE_CPU_SIMD_MATH_INL_H_
#endif

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

/// e^x within 1.1 ulp for x <= 88 (above, e^88). Below -87.3, where the result leaves the normal
/// range, 0. NaN stays NaN.
HWY_INLINE Vec vec_exp(Vec x) {
  const Tag d;
  const hn::RebindToSigned<Tag> i32;
  const Vec kLowest = vec_of(-87.3f);
  const Vec kRound = vec_of(0x1.8p23f);  // adding it leaves the nearest integer in the low bits
  const VecMask vanished = hn::Lt(x, kLowest);
  const Vec highest = vec_of(88.0f);
  const Vec in = hn::IfThenElse(hn::Gt(x, highest), highest, x);  // a NaN passes
  const Vec shifted = hn::MulAdd(in, vec_of(0x1.715476p+0f), kRound);
  const Vec n = hn::Sub(shifted, kRound);
  // ln 2 in two parts: n times the first is exact, fused or not.
  Vec r = hn::NegMulAdd(n, vec_of(0x1.62e4p-1f), in);
  r = hn::NegMulAdd(n, vec_of(0x1.7f7d1cp-20f), r);  // |r| <= ln 2 / 2
  Vec p = vec_of(1.0f / 5040.0f);                    // Taylor: the rest is below 6e-9
  p = hn::MulAdd(p, r, vec_of(1.0f / 720.0f));
  p = hn::MulAdd(p, r, vec_of(1.0f / 120.0f));
  p = hn::MulAdd(p, r, vec_of(1.0f / 24.0f));
  p = hn::MulAdd(p, r, vec_of(1.0f / 6.0f));
  p = hn::MulAdd(p, r, vec_of(0.5f));
  p = hn::MulAdd(hn::Mul(p, r), r, r);
  // The low bits of `shifted` are n; moved up by 23 they are an exponent.
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(i32, shifted));
  const Vec power = hn::BitCast(d, hn::Add(exponent, hn::Set(i32, 0x3f800000)));
  return hn::IfThenZeroElse(vanished, hn::MulAdd(p, power, power));
}

/// 1 / (1 + e^-x) without an overflow on either side.
HWY_INLINE Vec vec_sigmoid(Vec x) {
  const Vec one = vec_of(1.0f);
  const Vec e = vec_exp(hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(Tag())), e, one), hn::Add(one, e));
}

/// log(1 + e^x) without overflow: max(x, 0) + log1p(e^-|x|).
HWY_INLINE Vec vec_softplus(Vec x) {
  const Vec e = vec_exp(hn::Neg(hn::Abs(x)));
  // log1p(e) = 2 atanh(s) with s = e / (2 + e) <= 1/3; the first term left out is s^15 / 15.
  const Vec s = hn::Div(e, hn::Add(vec_of(2.0f), e));
  const Vec s2 = hn::Mul(s, s);
  Vec p = vec_of(1.0f / 13.0f);
  p = hn::MulAdd(p, s2, vec_of(1.0f / 11.0f));
  p = hn::MulAdd(p, s2, vec_of(1.0f / 9.0f));
  p = hn::MulAdd(p, s2, vec_of(1.0f / 7.0f));
  p = hn::MulAdd(p, s2, vec_of(1.0f / 5.0f));
  p = hn::MulAdd(p, s2, vec_of(1.0f / 3.0f));
  const Vec twice = hn::Add(s, s);
  const Vec tail = hn::MulAdd(hn::Mul(twice, s2), p, twice);
  return hn::Add(hn::IfThenZeroElse(hn::Lt(x, hn::Zero(Tag())), x), tail);
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
