// The factor kernel's shared memory, its lanes, gates, norms, and products of tokens inside 16.
//
// Warp (r, c) of eight works on tokens 16 r .. + 15 and channels 64 c .. + 63 of the chunk; a lane
// owns two neighbouring channels of all sixteen tokens, so products of alpha run in registers. A
// pair (i, j) belongs to the level h (1, 2, 4, 8) at which i lies in the later and j in the earlier
// of two neighbouring blocks of h tokens: q^ and k^ are decayed to the border between the two, so
// no exponent is positive. The operands of a level go through memory that is the warp's own.
#pragma once

#include "ops/kda/prefill/kda_prefill_sm90.cuh"

namespace linestate::kda_sm90 {

constexpr int kFactorThreads = 256;
constexpr int kFactorBlocks = 2;  // a multiprocessor

/// Between the products inside 16 tokens and the inverse; lies over Record::At.
struct Inner {
  float sums[4][12][32];      // block r: sums of its second half of the channels; then A of it
  float inverse_norm[2][64];  // of q, of k
};
static_assert(sizeof(Inner) <= kTile);

/// Operands of the inverse; lie over `k` once the products between blocks are done.
struct Joins {
  uint8_t Aqk_rest[kTile];
  uint16_t A16[2][2][16][24];  // kept or rest; blocks (1, 0) and (3, 2); times beta
  uint16_t A32[2][32][40];     // kept or rest; tokens 32.. against 0..31
};
static_assert(sizeof(Joins) <= 2 * kTile);

/// A (chunk, value head) that the block works on or will.
struct Work {
  ChunkPlan chunk;
  int32_t j;     // value head
  int32_t head;  // key head
  bool more;     // false: there is none

  __device__ bool full() const { return chunk.lo == 0 && chunk.hi == kChunk; }
};

struct FactorShared {
  uint8_t q[2 * kTile];  // raw; then q^ decayed from its block's begin; then T and its rest
  uint8_t k[2 * kTile];  // likewise k; then Joins
  uint8_t X[2 * kTile];  // k^ decayed to its block's end
  Record record;         // Kt first holds what rounding lost of X; At: Inner, then Aqk
  float dt_bias[kWidth];
  uint8_t X48[4096];         // tokens 16..31 decayed to 48: two tiles of 16 rows
  float total[4][kWidth];    // products of alpha over 16 tokens
  float norm[2][3][kChunk];  // half of the channels; sums of q q, k k, q k
  float beta[kChunk];
  Work work[2];
};
static_assert(offsetof(FactorShared, record) % 1024 == 0 && sizeof(FactorShared) <= 115712);
static_assert(offsetof(FactorShared, X48) % 1024 == 0);

struct FactorLane {
  int thread;
  int lane;
  int r;
  int c;

  __device__ explicit FactorLane(int thread_in) {
    thread = afresh(thread_in);
    lane = thread % 32;
    r = thread / 64;
    c = thread / 32 % 2;
  }
  __device__ int channel() const { return 64 * c + 2 * lane; }
  /// Byte of the lane's channels in row 16 r of a [64, 128] array; `^ token % 8 << 4` and `+ 128
  /// token` lead to the others.
  __device__ uint32_t base() const {
    return static_cast<uint32_t>(kTile * c + 2048 * r + 4 * lane);
  }
};

/// Constants of one head's gate.
struct Gate {
  KdaGate form;
  float slope;  // -exp(A_log) log2(e); log2(e) when activated
  float bound;  // lower_bound log2(e)
};

__device__ inline float softplus_decay(float slope, float x) {
  const float e = exp2_fast(-kLog2E * fabsf(x));
  const float series = e * (1.0f + e * (-0.5f + e * (1.0f / 3 + e * (-0.25f + e * 0.2f))));
  const float logarithm = log2_fast(1.0f + e) * 0.6931471805599453f;
  return exp2_fast(slope * (fmaxf(x, 0.0f) + (e < 0.0625f ? series : logarithm)));
}

/// The gate tensor to alpha = exp(g). The form is asked once: neighbours' special functions
/// overlap.
__device__ inline void decay_all(const Gate& gate, const float2 bias, float (&alpha)[2][8][2]) {
  float* x = &alpha[0][0][0];
  if (gate.form == KdaGate::kBounded) {
    const float b[2] = {gate.slope * bias.x, gate.slope * bias.y};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float e = exp2_fast(fmaf(gate.slope, x[i], b[i % 2]));
      x[i] = exp2_fast(gate.bound * reciprocal_fast(1.0f + e));
    }
  } else if (gate.form == KdaGate::kActivated) {
#pragma unroll
    for (int i = 0; i < 32; ++i) x[i] = exp2_fast(gate.slope * x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float b = i % 2 == 0 ? bias.x : bias.y;
      x[i] = softplus_decay(gate.slope, x[i] + b);
    }
  }
}

template <bool kHalf>
__device__ void mma_raw(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                        uint32_t b0, uint32_t b1) {
  if constexpr (kHalf) {
    mma_16816(d, a0, a1, a2, a3, b0, b1);
  } else {
    mma_16816_bf16(d, a0, a1, a2, a3, b0, b1);
  }
}

/// Sums of q q, k k and q k over the warp's channels, of its sixteen tokens: diagonals of products.
template <bool kHalf>
__device__ void take_norms(const FactorLane& at, FactorShared& s) {
  const int row = at.lane & 15;
  const uint32_t from =
      shared_address(s.q) + static_cast<uint32_t>(kTile * at.c + 2048 * at.r + 128 * row +
                                                  (((at.lane >> 4) ^ (row & 7)) << 4));
  float first[4] = {};  // queries 0-7 with themselves
  float second[4] = {};
  float early[4] = {};  // queries and keys 0-7 with keys
  float late[4] = {};
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) {
    uint32_t q[4];
    uint32_t k[4];
    load_matrices(from ^ (kk << 5), q);
    load_matrices((from ^ (kk << 5)) + 2 * kTile, k);
    mma_raw<kHalf>(first, q[0], q[1], q[2], q[3], q[0], q[2]);
    mma_raw<kHalf>(second, q[0], q[1], q[2], q[3], q[1], q[3]);
    mma_raw<kHalf>(early, q[0], k[0], q[2], k[2], k[0], k[2]);
    mma_raw<kHalf>(late, q[1], k[1], q[3], k[3], k[1], k[3]);
  }
  const int g = at.lane / 4;
  if (at.lane % 4 != g / 2) return;
  const bool odd = (g & 1) != 0;
  auto& norm = s.norm[at.c];
  const int token = 16 * at.r + g;
  norm[0][token] = odd ? first[1] : first[0];
  norm[0][token + 8] = odd ? second[3] : second[2];
  norm[1][token] = odd ? early[3] : early[2];
  norm[1][token + 8] = odd ? late[3] : late[2];
  norm[2][token] = odd ? early[1] : early[0];
  norm[2][token + 8] = odd ? late[1] : late[0];
}

/// Products inside 16 tokens, over the warp's channels: element (g, 2 t + e) of the two diagonal
/// blocks of eight and of the one below them; queries, then keys.
struct InnerSums {
  float diagonal[2][4];
  float below[4] = {};
};

/// Where a lane finds matrices of eight tokens (rows `8 part ..` of block r) for load_matrices.
struct Fragments {
  uint32_t q_or_k;  // offset without the array: matrices q, k, q, k in columns 0, 0, 8, 8
  bool keys;        // the lane addresses a matrix of keys
  uint32_t four;    // matrices in columns 0, 8, 16, 24

  __device__ explicit Fragments(const FactorLane& at) {
    const int i = at.lane & 7;
    const int matrix = at.lane >> 3;
    const auto base = static_cast<uint32_t>(kTile * at.c + 2048 * at.r + 128 * i);
    keys = (matrix & 1) != 0;
    q_or_k = base + static_cast<uint32_t>(((matrix >> 1) ^ i) << 4);
    four = base + static_cast<uint32_t>((matrix ^ i) << 4);
  }
};

/// sum += queries or keys (rows 0-7 or 8-15) times keys, over the warp's 64 channels.
__device__ inline void inner_products(const Fragments& at, uint32_t q, uint32_t k,
                                      float (&sum)[4]) {
  const uint32_t from = at.q_or_k + (at.keys ? k : q);
  uint32_t a[4][4];
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) load_matrices(from ^ (kk << 5), a[kk]);
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) {
    mma_16816(sum, a[kk][0], a[kk][1], a[kk][2], a[kk][3], a[kk][1], a[kk][3]);
  }
}

}  // namespace linestate::kda_sm90
