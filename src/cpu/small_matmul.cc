#include "cpu/small_matmul.h"

#include <cstring>

#include "cpu/avx2.h"

namespace linestate {
namespace {

constexpr int64_t kPanelRows = 256;  // the largest head dimension

// Eight floats that the compiler maps to whatever registers the target has. Passed by reference
// only: by value they would change the calling convention between targets.
typedef float Lanes __attribute__((vector_size(32)));

LINESTATE_INLINE void load(Lanes& lanes, const float* from) {
  std::memcpy(&lanes, from, sizeof(lanes));
}
LINESTATE_INLINE void store(float* to, const Lanes& lanes) {
  std::memcpy(to, &lanes, sizeof(lanes));
}

// One row of a tile, 16 columns: c <- hi * c + acc.
LINESTATE_INLINE void finish(float* c, float hi, const Lanes& left, const Lanes& right) {
  Lanes value;
  load(value, c);
  value = value * hi + left;
  store(c, value);
  load(value, c + 8);
  value = value * hi + right;
  store(c + 8, value);
}

LINESTATE_INLINE void begin(Lanes& left, Lanes& right, const float* c, float lo) {
  load(left, c);
  load(right, c + 8);
  left = left * lo;
  right = right * lo;
}

LINESTATE_INLINE void step(Lanes& left, Lanes& right, float a, const Lanes& b0, const Lanes& b1) {
  left += a * b0;
  right += a * b1;
}

// 4 rows by 16 columns, accumulators in registers.
LINESTATE_INLINE void tile(const SmallMatmul& op, const float* a, const float* b, float* c) {
  Lanes l0, l1, l2, l3, r0, r1, r2, r3;
  begin(l0, r0, c, op.keep_lo);
  begin(l1, r1, c + op.c_pitch, op.keep_lo);
  begin(l2, r2, c + 2 * op.c_pitch, op.keep_lo);
  begin(l3, r3, c + 3 * op.c_pitch, op.keep_lo);
  for (int64_t k = 0; k < op.k; ++k, b += op.b_pitch) {
    Lanes b0, b1;
    load(b0, b);
    load(b1, b + 8);
    step(l0, r0, a[k], b0, b1);
    step(l1, r1, a[op.a_pitch + k], b0, b1);
    step(l2, r2, a[2 * op.a_pitch + k], b0, b1);
    step(l3, r3, a[3 * op.a_pitch + k], b0, b1);
  }
  finish(c, op.keep_hi, l0, r0);
  finish(c + op.c_pitch, op.keep_hi, l1, r1);
  finish(c + 2 * op.c_pitch, op.keep_hi, l2, r2);
  finish(c + 3 * op.c_pitch, op.keep_hi, l3, r3);
}

// B fits the first-level cache: C and A are walked once, row by row.
LINESTATE_INLINE void tiles_by_row(const SmallMatmul& op) {
  for (int64_t m = 0; m < op.m; m += 4) {
    for (int64_t n = 0; n < op.n; n += 16) {
      tile(op, op.a + m * op.a_pitch, op.b + n, op.c + m * op.c_pitch + n);
    }
  }
}

// B does not fit: 16 columns at a time, copied side by side. In place, rows a power of two apart
// would fall on the same few cache sets and push each other out.
LINESTATE_INLINE void tiles_by_panel(const SmallMatmul& op) {
  alignas(32) float panel[kPanelRows * 16];
  SmallMatmul packed = op;
  packed.b_pitch = 16;
  for (int64_t n = 0; n < op.n; n += 16) {
    for (int64_t k = 0; k < op.k; ++k) {
      std::memcpy(panel + k * 16, op.b + k * op.b_pitch + n, 16 * sizeof(float));
    }
    for (int64_t m = 0; m < op.m; m += 4) {
      tile(packed, op.a + m * op.a_pitch, panel, op.c + m * op.c_pitch + n);
    }
  }
}

LINESTATE_INLINE void all_tiles(const SmallMatmul& op) {
  constexpr int64_t kFits = int64_t{16} * 1024;  // bytes of B, half of a small first-level cache
  const bool fits = op.k * op.n * static_cast<int64_t>(sizeof(float)) <= kFits;
  if (fits || op.k > kPanelRows || op.m == 4) {
    tiles_by_row(op);
  } else {
    tiles_by_panel(op);
  }
}

LINESTATE_AVX2 void matmul_avx2(const SmallMatmul& op) { all_tiles(op); }
void matmul_base(const SmallMatmul& op) { all_tiles(op); }

}  // namespace

void small_matmul(const SmallMatmul& op) { cpu_has_avx2() ? matmul_avx2(op) : matmul_base(op); }

}  // namespace linestate
