// Chunked KDA prefill on Hopper: what its kernels share.
//
// 64 tokens a chunk. With alpha_i = exp(g_i), P_i and X_i the products of alpha up to token i and
// behind it, all in a chunk:
//   Kd = k^ P   Qd = q^ P   Kr = k^ X   gamma = P_63            every factor is at most 1
//   A_ij = beta_i k^_i . k^_j alpha_{j+1..i} (j < i)   Aqk_ij = q^_i . k^_j alpha_{j+1..i} (j <= i)
//   T = (I + A)^-1      Kt = diag(beta) T^T Kr          At = Aqk T diag(beta)
//   X^T = V^T - S Kd^T     O^T = S Qd^T + X^T At^T      S <- S gamma + X^T Kt
// Row j of Kt is what token j's value still adds to the state when the chunk is over: sums of
// nearly equal keys with alternating signs are done here, in f32, and not by the state. Three
// kernels: "plan" lists the chunks of all rows, "factor" makes the first two lines and Kt, At of
// each (chunk, value head) into records in the workspace, "state" holds S in registers and runs the
// last line along a (row, value head).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/hopper.cuh"
#include "ops/kda/kda_device.cuh"

namespace linestate::kda_sm90 {

constexpr int kChunk = 64;
constexpr int kWidth = 128;  // K and V
constexpr int kTile = 8192;  // [64, 64] of f16
constexpr float kLog2E = 1.4426950408889634f;

/// What one chunk of one value head hands to the state. Tiles as hopper.cuh lays them out.
struct Record {
  uint8_t Kd[2 * kTile];  // [64 tokens, 128]
  uint8_t Qd[2 * kTile];
  uint8_t Kt[2 * kTile];
  uint8_t At[kTile];  // [64, 64], zeros above the diagonal
  float gamma[kWidth];
};
static_assert(sizeof(Record) % 128 == 0);

/// One chunk of the call: position i is token first + i, and belongs to the row when lo <= i < hi.
struct ChunkPlan {
  int64_t first;  // may lie before the row
  int32_t lo;
  int32_t hi;

  __device__ bool holds(int i) const { return i >= lo && i < hi; }
};

/// Chunks lie on the absolute grid of the sequence.
struct Chunks {
  int64_t first;
  int32_t lead;
  int32_t end;

  __device__ explicit Chunks(const DeviceRow& row)
      : first(row.token_begin - row.start % kChunk),
        lead(static_cast<int32_t>(row.start % kChunk)),
        end(lead + static_cast<int32_t>(row.valid)) {}
  __device__ int32_t count() const { return (end + kChunk - 1) / kChunk; }
  __device__ ChunkPlan at(int32_t chunk) const {
    const int32_t place = kChunk * chunk;
    return {first + place, max(lead - place, 0), min(end - place, kChunk)};
  }
};

/// Where things lie in the workspace.
struct Plan {
  int32_t* total;     // chunks of the call
  int32_t* base;      // [N] first chunk of a row; -1 = the list is full
  ChunkPlan* chunks;  // [capacity]
  Record* records;    // [capacity, heads of a pass]
  int64_t capacity;
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

/// Two f32 as two f16 and what rounding lost of them.
__device__ inline void split_pair(float low, float high, uint32_t& bits, uint32_t& rest) {
  bits = pack_f16(low, high);
  const float2 kept = __half22float2(*reinterpret_cast<const __half2*>(&bits));
  rest = pack_f16(low - kept.x, high - kept.y);
}

__device__ inline uint32_t& word_at(uint8_t* at) { return *reinterpret_cast<uint32_t*>(at); }

__device__ inline void put_1(uint8_t* tile, int row, int column, float x) {
  *reinterpret_cast<__half*>(tile + tile_offset(row, column)) = __float2half_rn(x);
}
__device__ inline void put_split(uint8_t* tile, uint8_t* rest, int row, int column, float x) {
  const __half kept = __float2half_rn(x);
  *reinterpret_cast<__half*>(tile + tile_offset(row, column)) = kept;
  put_1(rest, row, column, x - __half2float(kept));
}

}  // namespace linestate::kda_sm90
