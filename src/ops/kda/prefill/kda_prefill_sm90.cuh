// Chunked KDA prefill on Hopper: what the two halves of the block share.
//
// A block of 512 threads advances one (row, value head) at a time, 64 tokens a chunk. With
// alpha_i = exp(g_i), P_i and X_i the products of alpha up to token i and behind it, all in a
// chunk:
//   Kd = k^ P   Qd = q^ P   Kr = k^ X   gamma = P_63            every factor is at most 1
//   A_ij = beta_i k^_i . k^_j alpha_{j+1..i} (j < i)   Aqk_ij = q^_i . k^_j alpha_{j+1..i} (j <= i)
//   T = (I + A)^-1 diag(beta)
//   X^T = V^T - S Kd^T     R^T = X^T T^T     O^T = S Qd^T + R^T Aqk^T     S <- S gamma + R^T Kr
// Two warpgroups ("factor") make everything above the last line, two ("state") hold 64 rows of S
// each in registers and run the last line. Operands are f16, sums and S are f32.
#pragma once

#include <cstdint>

#include "cuda/hopper.cuh"
#include "ops/kda/kda_device.cuh"

namespace linestate::kda_sm90 {

constexpr int kChunk = 64;
constexpr int kWidth = 128;  // K and V
constexpr int kFactorThreads = 256;
constexpr int kStateThreads = 256;
constexpr int kStages = 2;

/// What one chunk hands from the factor half to the state half.
struct Stage {
  uint8_t Kd[2 * 8192];  // [64 tokens, 128]
  uint8_t Qd[2 * 8192];
  uint8_t Kr[2 * 8192];
  uint8_t T[8192];  // [64, 64], zeros above the diagonal
  uint8_t Aqk[8192];
};

/// Operands of the pairs whose tokens lie in neighbouring blocks of 16 or of 32.
struct Level {
  uint8_t upper[2 * 8192];  // q^ and k^ of the later block, decayed from its begin
  uint8_t lower[2 * 4096];  // k^ of the earlier block, decayed to its end
};

/// Used between the products of one chunk; shares memory with alpha, which is dead by then.
struct Solve {
  float exchange[30][128];  // products of the second half of the channels
  float A[4][16][20];       // diagonal blocks
  uint16_t A16[2][16][24];  // blocks (1, 0) and (3, 2), f16
  uint16_t A32[32][40];     // tokens 32.. against 0..31, f16
};

struct Shared {
  Stage stage[kStages];
  Level level16;  // T of the chunk, unscaled f16 [64][72], lies here once the products are done
  Level level32;
  union {
    float4 alpha[7][kFactorThreads];
    Solve solve;
  };
  uint8_t values[2][8192];  // a warpgroup's half of v, [64 tokens, 64]; then of the output
  float total[4][kWidth];   // products of alpha over 16 tokens
  float gamma[kStages][kWidth];
  float dt_bias[kWidth];
  float norm[2][2][kChunk];  // channel half, q or k: sums of squares
  float beta[kChunk];
  uint64_t full[kStages];
  uint64_t empty[kStages];
};
static_assert(sizeof(Solve) <= sizeof(float4) * 7 * kFactorThreads);
static_assert(sizeof(Shared) <= 232448);

/// Chunks lie on the absolute grid: position i of chunk c is token first + 64 c + i of the call,
/// and belongs to the row when 64 c + i is in [lead, end).
struct Chunks {
  int64_t first;  // may lie before the row
  int32_t lead;
  int32_t end;

  __device__ explicit Chunks(const DeviceRow& row)
      : first(row.token_begin - row.start % kChunk),
        lead(static_cast<int32_t>(row.start % kChunk)),
        end(lead + static_cast<int32_t>(row.valid)) {}
  __device__ int32_t count() const { return (end + kChunk - 1) / kChunk; }
  __device__ bool holds(int32_t place) const { return place >= lead && place < end; }
  __device__ int64_t token(int32_t place) const { return first + place; }
};

/// The same number, of which the compiler knows nothing. Offsets made from it are worked out where
/// they are used; kept across a chunk there would be more of them than registers.
__device__ inline int afresh(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

template <bool kHalf>
__device__ void widen_pair(uint32_t bits, float& low, float& high) {
  if constexpr (kHalf) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&bits));
    low = pair.x;
    high = pair.y;
  } else {
    low = __uint_as_float(bits << 16);
    high = __uint_as_float(bits & 0xffff0000u);
  }
}

/// Eight neighbours of a 16-bit tensor.
template <bool kHalf>
__device__ void widen_8(uint4 bits, float (&x)[8]) {
  widen_pair<kHalf>(bits.x, x[0], x[1]);
  widen_pair<kHalf>(bits.y, x[2], x[3]);
  widen_pair<kHalf>(bits.z, x[4], x[5]);
  widen_pair<kHalf>(bits.w, x[6], x[7]);
}

__device__ inline void sync_factor() { sync_some<1, kFactorThreads>(); }

/// A thread of the factor half.
struct FactorLane {
  int thread;  // of 256
  int r;       // block of 16 tokens
  int c;       // half of the channels
  int g;
  int t;

  __device__ explicit FactorLane(int thread_in) : thread(afresh(thread_in)) {
    const int warp = thread / 32;
    r = warp / 2;
    c = warp % 2;
    g = thread % 32 / 4;
    t = thread % 4;
  }
  __device__ int token(int b) const { return 16 * r + 8 * b + g; }
  /// First of eight channels.
  __device__ int channel(int d) const { return 64 * c + 32 * d + 8 * t; }
};

__device__ inline void put_1(uint8_t* tile, int row, int column, float x) {
  *reinterpret_cast<__half*>(tile + tile_offset(row, column)) = __float2half_rn(x);
}

}  // namespace linestate::kda_sm90
