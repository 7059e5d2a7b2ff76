// Sixteen elements of a state in the order of lanes that is cheapest for their dtype, for loops
// that stream through a state in place: read, compute in f32, round, write. Compiled once per
// instruction set, see simd_inl.h.
//
// Two bf16 that share 32 bits widen by a shift and a mask and are rounded together in their 16-bit
// lanes; putting sixteen of them into rising order instead would take lane-crossing moves both
// ways. So on AVX2 a pack of bf16 holds the even elements in v[0] and the odd ones in v[1]. All
// that meets such a pack lane by lane (keys, queries, gates) goes through to_pack_order first, once
// per head. Other packs are Groups in rising order.
//
// Bits: pack_sum is the tree of group_sum over the same sixteen partial sums, so the order does not
// show in any result.
#if defined(LINESTATE_CPU_SIMD_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESTATE_CPU_SIMD_PACK_INL_H_
#undef LINESTATE_CPU_SIMD_PACK_INL_H_
#else
#define LINESTATE_CPU_SIMD_PACK_INL_H_
#endif

#include <cstdint>
#include <limits>

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

/// Sixteen elements, widened.
template <typename T>
HWY_INLINE Group pack_load(const T* p) {
  return group_load(p);
}

/// Round to nearest even. A NaN stays one if its low sixteen bits are zero. All NaNs are like that
/// which arithmetic makes from a bf16 state and from what went through clear_nan_payload: invalid
/// operations give an empty payload, and others keep that of an operand.
template <typename T>
HWY_INLINE void pack_store(T* p, const Group& g) {
  group_store(p, g);
}

/// group_sum of the same elements.
template <typename T>
HWY_INLINE float pack_sum(const Group& g) {
  return group_sum(g);
}

/// x [n] from rising order to that of packs of T, in place; n a multiple of 16.
template <typename T>
HWY_INLINE void to_pack_order(float*, int64_t) {}

/// And back.
template <typename T>
HWY_INLINE void from_pack_order(float*, int64_t) {}

#if HWY_TARGET == HWY_AVX2

template <>
HWY_INLINE Group pack_load(const hwy::bfloat16_t* p) {
  const hn::RebindToUnsigned<Tag> d32;
  const auto pairs = hn::LoadU(d32, reinterpret_cast<const uint32_t*>(p));
  const auto odd = hn::And(pairs, hn::Set(d32, 0xffff0000u));
  return {{hn::BitCast(Tag(), hn::ShiftLeft<16>(pairs)), hn::BitCast(Tag(), odd)}};
}

template <>
HWY_INLINE void pack_store(hwy::bfloat16_t* p, const Group& g) {
  const hn::RebindToUnsigned<Tag> d32;
  const hn::RepartitionToNarrow<decltype(d32)> d16;
  const hn::RebindToSigned<decltype(d16)> i16;
  const auto even = hn::BitCast(d32, g.v[0]);
  const auto odd = hn::BitCast(d32, g.v[1]);
  const auto high = hn::OddEven(hn::BitCast(d16, odd), hn::BitCast(d16, hn::ShiftRight<16>(even)));
  const auto low = hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(odd)), hn::BitCast(d16, even));
  // Up when low > 0x8000, or = 0x8000 and high is odd; signed, because AVX2 compares nothing else.
  const auto above = hn::BitCast(i16, hn::Xor(low, hn::Set(d16, uint16_t{0x8000})));
  const auto is_odd = hn::BitCast(i16, hn::And(high, hn::Set(d16, uint16_t{1})));
  const auto up = hn::VecFromMask(i16, hn::Gt(hn::SaturatedAdd(above, is_odd), hn::Zero(i16)));
  const auto rounded = hn::Sub(hn::BitCast(i16, high), up);
  hn::StoreU(rounded, i16, reinterpret_cast<int16_t*>(p));
}

template <>
HWY_INLINE float pack_sum<hwy::bfloat16_t>(const Group& g) {
  // The tree's last step adds the sum of the even elements and that of the odd ones.
  return lanes_tree_sum(Tag(), g.v[0]) + lanes_tree_sum(Tag(), g.v[1]);
}

template <>
HWY_INLINE void to_pack_order<hwy::bfloat16_t>(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kGroup) {
    const Group g = group_load(x + i);
    group_store(x + i,
                {{hn::ConcatEven(Tag(), g.v[1], g.v[0]), hn::ConcatOdd(Tag(), g.v[1], g.v[0])}});
  }
}

template <>
HWY_INLINE void from_pack_order<hwy::bfloat16_t>(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kGroup) {
    const Group g = group_load(x + i);
    const Vec first = hn::InterleaveLower(Tag(), g.v[0], g.v[1]);  // 0 .. 3, 8 .. 11
    const Vec second = hn::InterleaveUpper(Tag(), g.v[0], g.v[1]);
    group_store(x + i, {{hn::ConcatLowerLower(Tag(), second, first),
                         hn::ConcatUpperUpper(Tag(), second, first)}});
  }
}

#else

template <>
HWY_INLINE void pack_store(hwy::bfloat16_t* p, const Group& g) {
  const hn::RebindToUnsigned<Tag> d32;
  const hn::RebindToSigned<Tag> i32;
  const hn::Rebind<uint16_t, Tag> d16;
  for (int64_t i = 0; i < kGroupVecs; ++i) {
    const auto bits = hn::BitCast(d32, g.v[i]);
    const auto is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
    const auto sum = hn::Add(hn::Add(bits, hn::Set(d32, 0x7fffu)), is_odd);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(i32, hn::ShiftRight<16>(sum))), d16,
               reinterpret_cast<uint16_t*>(p) + i * kVecLanes);
  }
}

#endif

/// NaNs among x [n] become the plain one, as pack_store wants them; n a multiple of 16.
HWY_INLINE void clear_nan_payload(float* x, int64_t n) {
  const Vec plain = vec_of(std::numeric_limits<float>::quiet_NaN());
  for (int64_t i = 0; i < n; i += kVecLanes) {
    const Vec value = vec_load(x + i);
    vec_store(x + i, hn::IfThenElse(hn::IsNaN(value), plain, value));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
