// Four floats that move together. The compiler's vector type instead of intrinsics: every target
// has it, and lane arithmetic is plain IEEE, so results do not depend on the instruction set.
#pragma once

#include <cstdint>
#include <cstring>

namespace linestate {

using Lanes = float __attribute__((vector_size(16)));
inline constexpr int64_t kLaneCount = 4;

inline Lanes lanes_load(const float* p) {
  Lanes x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline void lanes_store(float* p, Lanes x) { std::memcpy(p, &x, sizeof x); }
inline Lanes lanes_of(float x) { return Lanes{x, x, x, x}; }
inline float lanes_sum(Lanes x) { return (x[0] + x[2]) + (x[1] + x[3]); }

}  // namespace linestate
