// The triangular inverse of one chunk: T = (I + A)^-1 diag(beta). Blocks of 16 by substitution in
// f32, which stays exact when keys repeat; then two joins on tensor cores, 16 -> 32 -> 64.
#pragma once

#include "ops/kda/prefill/kda_prefill_sm90.cuh"

namespace linestate::kda_sm90 {

constexpr int kSolved = 72;  // row pitch of the unscaled inverse

/// Inverses of the four diagonal blocks, a column a lane, by substitution in f32.
__device__ inline void solve_diagonal(int thread, Shared& s, uint16_t* solved, Stage& stage) {
  const int block = thread / 16;
  const int j = thread % 16;
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float even = i == j ? 1.0f : 0.0f;
    float odd = 0.0f;
#pragma unroll
    for (int m = 0; m < i; ++m) {
      float& sum = m % 2 == 0 ? even : odd;
      sum = fmaf(-s.solve.A[block][i][m], x[m], sum);
    }
    x[i] = even + odd;
  }
  const float beta = s.beta[thread];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    solved[(16 * block + i) * kSolved + thread] = static_cast<uint16_t>(f32_to_f16_bits(x[i]));
    put_1(stage.T, 16 * block + i, thread, x[i] * beta);
  }
}

/// Joins inverses of two neighbouring blocks of kSize: -T_late A T_early, for 16 of its columns.
/// Works on the transpose, so that the first product's result is the second's operand.
template <int kSize>
__device__ void join(int first, int columns, const uint16_t* A, int pitch, const float* beta,
                     uint16_t* solved, Stage& stage, int lane) {
  constexpr int kTiles = kSize / 8;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto pair = [](const uint16_t* at) { return *reinterpret_cast<const uint32_t*>(at); };
  float w[kTiles][4] = {};
#pragma unroll
  for (int m = 0; m < kSize; m += 16) {
    // Registers: columns 0-7 or 8-15 of T_early, then rows 8-15.
    uint32_t a[4];
    const int row = first + m + (lane & 7) + (lane & 16) / 2;
    const int column = first + columns + (lane & 8);
    load_matrices_transposed(shared_address(solved + row * kSolved + column), a);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint16_t* b = A + (8 * n + g) * pitch + m + 2 * t;
      mma_16816(w[n], a[0], a[1], a[2], a[3], pair(b), pair(b + 8));
    }
  }
  float x[kTiles][4] = {};
  const int late = first + kSize;
#pragma unroll
  for (int m = 0; m < kTiles; m += 2) {
    const uint32_t a0 = pack_f16(w[m][0], w[m][1]);
    const uint32_t a1 = pack_f16(w[m][2], w[m][3]);
    const uint32_t a2 = pack_f16(w[m + 1][0], w[m + 1][1]);
    const uint32_t a3 = pack_f16(w[m + 1][2], w[m + 1][3]);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint16_t* b = solved + (late + 8 * n + g) * kSolved + late + 8 * m + 2 * t;
      mma_16816(x[n], a0, a1, a2, a3, pair(b), pair(b + 8));
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = late + 8 * n + 2 * t + (e & 1);
      const int column = first + columns + g + (e & 2) * 4;
      const float value = -x[n][e];
      if (kSize < 32) {
        solved[row * kSolved + column] = static_cast<uint16_t>(f32_to_f16_bits(value));
      }
      put_1(stage.T, row, column, value * beta[column]);
    }
  }
}

__device__ inline void invert(int of, Shared& s, Stage& stage) {
  const FactorLane lane(of);
  auto* solved = reinterpret_cast<uint16_t*>(s.level16.upper);
  const int warp = lane.thread / 32;
  if (warp < 2) {
    solve_diagonal(lane.thread, s, solved, stage);
  } else if (warp < 4) {
    // The block above the diagonal of each joined pair, which the last product reads.
    const int i = lane.thread % 32;
    const int first = warp == 2 ? 0 : 32;
    auto* row = reinterpret_cast<uint4*>(solved + (first + i / 2) * kSolved + first + 16);
    row[i % 2] = make_uint4(0, 0, 0, 0);
  }
  sync_factor();
  if (warp < 2) {
    join<16>(32 * warp, 0, &s.solve.A16[warp][0][0], 24, s.beta, solved, stage, lane.thread % 32);
  }
  sync_factor();
  if (warp < 2) {
    join<32>(0, 16 * warp, &s.solve.A32[0][0], 40, s.beta, solved, stage, lane.thread % 32);
  }
}

}  // namespace linestate::kda_sm90
