// Four floats that move together. The compiler's vector type instead of intrinsics: every target
// has it, and lane arithmetic is plain IEEE, so results do not depend on the instruction set.
#pragma once

#include <cstdint>
#include <cstring>

namespace linestate {

using Lanes = float __attribute__((vector_size(16)));
using LaneMask = int32_t __attribute__((vector_size(16)));
inline constexpr int64_t kLaneCount = 4;

inline Lanes lanes_load(const float* p) {
  Lanes x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline void lanes_store(float* p, Lanes x) { std::memcpy(p, &x, sizeof x); }
inline Lanes lanes_of(float x) { return Lanes{x, x, x, x}; }
inline float lanes_sum(Lanes x) { return (x[0] + x[2]) + (x[1] + x[3]); }

inline LaneMask lanes_bits(Lanes x) { return reinterpret_cast<LaneMask>(x); }
inline Lanes lanes_from_bits(LaneMask bits) { return reinterpret_cast<Lanes>(bits); }
/// a where the mask is set, else b. Comparisons of Lanes give masks.
inline Lanes lanes_select(LaneMask mask, Lanes a, Lanes b) {
  return lanes_from_bits((mask & lanes_bits(a)) | (~mask & lanes_bits(b)));
}
inline Lanes lanes_abs(Lanes x) {
  constexpr int32_t kMagnitude = 0x7fffffff;
  return lanes_from_bits(lanes_bits(x) & LaneMask{kMagnitude, kMagnitude, kMagnitude, kMagnitude});
}

}  // namespace linestate
