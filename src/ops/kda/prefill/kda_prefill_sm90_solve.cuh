// The triangular inverse of one chunk: T = (I + A)^-1. Blocks of 16 by substitution in f32, which
// stays exact when keys repeat; then two joins on tensor cores, 16 -> 32 -> 64, whose operands are
// f16 and what rounding to f16 lost.
#pragma once

#include "ops/kda/prefill/kda_prefill_sm90_levels.cuh"

namespace linestate::kda_sm90 {

/// Column j of the inverse of diagonal block `block`, by substitution in f32.
__device__ inline void solve_column(const Inner& inner, int block, int j, float (&x)[16]) {
  const auto* A = reinterpret_cast<const float4*>(&inner.sums[block][0][0]);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float even = i == j ? 1.0f : 0.0f;
    float odd = 0.0f;
    // Rows of A are not fetched before they are used: they would be more than registers.
    if (i % 4 == 0) asm volatile("" ::: "memory");
#pragma unroll
    for (int m = 0; m < i; m += 4) {
      const float4 a = A[4 * i + m / 4];
      even = fmaf(-a.x, x[m], even);
      if (m + 1 < i) odd = fmaf(-a.y, x[m + 1], odd);
      if (m + 2 < i) even = fmaf(-a.z, x[m + 2], even);
      if (m + 3 < i) odd = fmaf(-a.w, x[m + 3], odd);
    }
    x[i] = even + odd;
  }
}

/// Joins inverses of two neighbouring blocks of kSize: -T_late A T_early, for 16 of its columns.
/// Works on the transpose, so that the first product's result is the second's operand. `A` is the
/// kept part, `rest` elements behind it the lost one.
template <int kSize>
__device__ void join(int first, int columns, const uint16_t* A, int pitch, int rest, uint8_t* T,
                     int lane) {
  constexpr int kTiles = kSize / 8;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto pair = [](const uint16_t* at) { return *reinterpret_cast<const uint32_t*>(at); };
  float w[kTiles][4] = {};
#pragma unroll
  for (int m = 0; m < kSize; m += 16) {
    // Registers: columns 0-7 or 8-15 of T_early, then rows 8-15.
    uint32_t a[4], lost[4];
    const int row = first + m + (lane & 7) + (lane & 16) / 2;
    const uint32_t at = shared_address(T) + tile_offset(row, first + columns + (lane & 8));
    load_matrices_transposed(at, a);
    load_matrices_transposed(at + kTile, lost);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint16_t* b = A + (8 * n + g) * pitch + m + 2 * t;
      mma_16816(w[n], a[0], a[1], a[2], a[3], pair(b), pair(b + 8));
      mma_16816(w[n], lost[0], lost[1], lost[2], lost[3], pair(b), pair(b + 8));
      mma_16816(w[n], a[0], a[1], a[2], a[3], pair(b + rest), pair(b + rest + 8));
    }
  }
  float x[kTiles][4] = {};
  const int late = first + kSize;
#pragma unroll
  for (int m = 0; m < kTiles; m += 2) {
    uint32_t a[4], lost[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      split_pair(w[m + i / 2][i % 2 * 2], w[m + i / 2][i % 2 * 2 + 1], a[i], lost[i]);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint8_t* low = T + tile_offset(late + 8 * n + g, late + 8 * m) + 4 * t;
      const uint8_t* high = T + tile_offset(late + 8 * n + g, late + 8 * m + 8) + 4 * t;
      const auto word = [](const uint8_t* b) { return *reinterpret_cast<const uint32_t*>(b); };
      mma_16816(x[n], a[0], a[1], a[2], a[3], word(low), word(high));
      mma_16816(x[n], lost[0], lost[1], lost[2], lost[3], word(low), word(high));
      mma_16816(x[n], a[0], a[1], a[2], a[3], word(low + kTile), word(high + kTile));
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      put_split(T, T + kTile, late + 8 * n + 2 * t + (e & 1), first + columns + g + (e & 2) * 4,
                -x[n][e]);
    }
  }
}

}  // namespace linestate::kda_sm90
