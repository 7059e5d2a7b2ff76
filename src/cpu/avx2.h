// One source, compiled for the base instruction set and again with wider registers; the choice is
// made at run time. Nothing is ever fused, so both give the same bits.
//
//   LINESTATE_INLINE void work_body(...) { loops }
//   LINESTATE_AVX2 void work_avx2(...) { work_body(...); }
//   void work(...) { cpu_has_avx2() ? work_avx2(...) : work_body(...); }
#pragma once

#define LINESTATE_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__)
#define LINESTATE_AVX2 __attribute__((target("avx2")))
#else
#define LINESTATE_AVX2
#endif

namespace linestate {

inline bool cpu_has_avx2() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
#else
  return false;
#endif
}

}  // namespace linestate
