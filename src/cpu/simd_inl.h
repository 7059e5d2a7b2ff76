// The vector vocabulary of the `cpu` rows, compiled once per instruction set. A source that uses
// it:
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "ops/x/x_cpu.cc"  // this file, from src/
//   #include <hwy/foreach_target.h>
//
//   #include "cpu/simd_inl.h"
//
//   HWY_BEFORE_NAMESPACE();
//   namespace linestate {
//   namespace HWY_NAMESPACE {
//   void work(...) { loops over Vec and Group; helpers are HWY_INLINE; no lambdas }
//   }  // namespace HWY_NAMESPACE
//   }  // namespace linestate
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE
//   namespace linestate {
//   HWY_EXPORT(work);
//   ... HWY_DYNAMIC_DISPATCH(work)(...) ...
//   }
//   #endif
//
// Bits: a sum over channels keeps sixteen partial sums, lane i of a Group, whatever the register
// width, and they meet in a fixed tree. So AVX2 and AVX-512, which both fuse multiply and add, give
// the same bits; targets without a fused form agree within rounding.
#if defined(LINESTATE_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESTATE_CPU_SIMD_INL_H_
#undef LINESTATE_CPU_SIMD_INL_H_
#else
#define LINESTATE_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "base/element.h"
#include "base/float_bits.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::CappedTag<float, 16>;
using Vec = hn::Vec<Tag>;
using VecMask = hn::Mask<Tag>;
inline constexpr int kVecLanes = static_cast<int>(hn::MaxLanes(Tag()));
inline constexpr int kGroup = 16;                      // floats of a Group
inline constexpr int kGroupVecs = kGroup / kVecLanes;  // its registers

HWY_INLINE Vec vec_of(float x) { return hn::Set(Tag(), x); }

// ---- widening and rounding ------------------------------------------------------------------

HWY_INLINE Vec vec_load(const float* p) { return hn::LoadU(Tag(), p); }

HWY_INLINE Vec vec_load(const hwy::bfloat16_t* p) {
  const hn::Rebind<uint16_t, Tag> d16;
  const hn::RebindToUnsigned<Tag> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(Tag(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

HWY_INLINE Vec vec_load(const hwy::float16_t* p) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3  // vcvtph2ps
  return hn::PromoteTo(Tag(), hn::LoadU(hn::Rebind<hwy::float16_t, Tag>(), p));
#else
  HWY_ALIGN float wide[kVecLanes];
  const auto* bits = reinterpret_cast<const uint16_t*>(p);
  for (int i = 0; i < kVecLanes; ++i) wide[i] = f16_to_f32(bits[i]);
  return hn::Load(Tag(), wide);
#endif
}

HWY_INLINE void vec_store(float* p, Vec x) { hn::StoreU(x, Tag(), p); }

/// Round to nearest even; NaN stays NaN. Highway's own DemoteTo cuts the low bits off.
HWY_INLINE void vec_store(hwy::bfloat16_t* p, Vec x) {
  const hn::RebindToUnsigned<Tag> d32;
  const hn::RebindToSigned<Tag> i32;
  const hn::Rebind<uint16_t, Tag> d16;
  const auto bits = hn::BitCast(d32, x);
  const auto high = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(high, hn::Set(d32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffu))));
  const auto quiet = hn::Or(high, hn::Set(d32, 0x40u));
  const auto nan = hn::RebindMask(d32, hn::IsNaN(x));
  const auto chosen = hn::BitCast(i32, hn::IfThenElse(nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(d16, chosen), d16, reinterpret_cast<uint16_t*>(p));
}

/// Round to nearest even; NaN stays NaN.
HWY_INLINE void vec_store(hwy::float16_t* p, Vec x) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3  // vcvtps2ph rounds to nearest even
  const hn::Rebind<hwy::float16_t, Tag> d16;
  hn::StoreU(hn::DemoteTo(d16, x), d16, p);
#else
  HWY_ALIGN float wide[kVecLanes];
  hn::Store(x, Tag(), wide);
  auto* bits = reinterpret_cast<uint16_t*>(p);
  for (int i = 0; i < kVecLanes; ++i) bits[i] = f32_to_f16(wide[i]);
#endif
}

/// Remembers whether a finite value was seen that becomes infinite as T. With bf16 only values
/// within half a step of the largest f32 would: not looked for.
template <typename T>
struct OverflowWatch {
  HWY_INLINE void see(Vec) {}
  HWY_INLINE bool saw_none() const { return true; }
};

template <>
struct OverflowWatch<hwy::float16_t> {
  using Bits = hn::RebindToUnsigned<Tag>;
  static constexpr uint32_t kFirst = 0x477ff000u;  // the bits of 65520
  static constexpr uint32_t kInfinity = 0x7f800000u;
  // Of magnitudes, their distance above kFirst. Smaller ones wrap to the far end.
  hn::Vec<Bits> least;

  HWY_INLINE OverflowWatch()
      : least(hn::Set(Bits(), 0xffffffffu)) {}  // implicit: not for HWY_TARGET
  HWY_INLINE void see(Vec x) {
    const auto magnitude = hn::BitCast(Bits(), hn::Abs(x));
    least = hn::Min(least, hn::Sub(magnitude, hn::Set(Bits(), kFirst)));
  }
  HWY_INLINE bool saw_none() const {
    const auto far = hn::Set(Bits(), kInfinity - kFirst);  // no unsigned comparison on AVX2
    return hn::AllTrue(Bits(), hn::Eq(hn::Min(least, far), far));
  }
};

// ---- groups of sixteen ----------------------------------------------------------------------

/// Sixteen floats in registers.
struct Group {
  Vec v[kGroupVecs];
};

HWY_INLINE Group group_of(float x) {
  Group g;
  for (int i = 0; i < kGroupVecs; ++i) g.v[i] = vec_of(x);
  return g;
}
template <typename T>
HWY_INLINE Group group_load(const T* p) {
  Group g;
  for (int i = 0; i < kGroupVecs; ++i) g.v[i] = vec_load(p + i * kVecLanes);
  return g;
}
template <typename T>
HWY_INLINE void group_store(T* p, const Group& g) {
  for (int i = 0; i < kGroupVecs; ++i) vec_store(p + i * kVecLanes, g.v[i]);
}
HWY_INLINE Group operator+(Group a, const Group& b) {
  for (int i = 0; i < kGroupVecs; ++i) a.v[i] = hn::Add(a.v[i], b.v[i]);
  return a;
}
HWY_INLINE Group operator-(Group a, const Group& b) {
  for (int i = 0; i < kGroupVecs; ++i) a.v[i] = hn::Sub(a.v[i], b.v[i]);
  return a;
}
HWY_INLINE Group operator*(Group a, const Group& b) {
  for (int i = 0; i < kGroupVecs; ++i) a.v[i] = hn::Mul(a.v[i], b.v[i]);
  return a;
}
/// a * b + c, fused where the target can.
HWY_INLINE Group mul_add(const Group& a, const Group& b, Group c) {
  for (int i = 0; i < kGroupVecs; ++i) c.v[i] = hn::MulAdd(a.v[i], b.v[i], c.v[i]);
  return c;
}
/// c - a * b, fused where the target can.
HWY_INLINE Group neg_mul_add(const Group& a, const Group& b, Group c) {
  for (int i = 0; i < kGroupVecs; ++i) c.v[i] = hn::NegMulAdd(a.v[i], b.v[i], c.v[i]);
  return c;
}

template <class D>
HWY_INLINE float lanes_tree_sum(D, hn::Vec<D> v) {
  // Unqualified calls, because the one-lane target has no such functions to find.
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return lanes_tree_sum(half, hn::Add(LowerHalf(half, v), UpperHalf(half, v)));
  } else if constexpr (hn::MaxLanes(D()) == 4) {
    const auto pairs = hn::Add(v, Shuffle1032(v));
    return hn::GetLane(hn::Add(pairs, Shuffle2301(pairs)));
  } else {
    static_assert(hn::MaxLanes(D()) == 1);
    return hn::GetLane(v);
  }
}

/// Sum of the lanes: i meets i + 8, then i + 4, i + 2, i + 1.
HWY_INLINE float group_sum(Group g) {
  for (int width = kGroupVecs / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) g.v[i] = hn::Add(g.v[i], g.v[i + width]);
  }
  return lanes_tree_sum(Tag(), g.v[0]);
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
