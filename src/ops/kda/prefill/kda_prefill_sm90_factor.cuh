// The factor kernel: from q, k, gate and beta of one (chunk, value head) to its record.
#pragma once

#include "ops/kda/prefill/kda_prefill_sm90_half.cuh"
#include "ops/kda/prefill/kda_prefill_sm90_solve.cuh"

namespace linestate::kda_sm90 {

/// The gate tensor of a lane's channel pair, as it lies in memory.
template <bool kGateF32>
struct RawGate {
  using Word = std::conditional_t<kGateF32, float2, uint32_t>;
  Word word[16];
};

/// Where a block's inputs lie. Numbers of the work are read where they are used.
template <bool kHalf, bool kGateF32>
struct Inputs {
  static constexpr int kGateBytes = kGateF32 ? 4 : 2;
  const KdaDevice& p;
  const Work& work;

  __device__ const uint16_t* row_of(const DeviceView<3>& x, int position) const {
    return static_cast<const uint16_t*>(x.data) + (work.chunk.first + position) * x.stride[0] +
           work.head * x.stride[1];
  }
  __device__ const char* gate_row(int position) const {
    return static_cast<const char*>(p.gate.data) +
           ((work.chunk.first + position) * p.gate.stride[0] + work.j * p.gate.stride[1]) *
               kGateBytes;
  }
  /// Starts the copy of q and k; positions outside the row become zero.
  __device__ void fetch(int of, FactorShared& s) const {
    const int thread = afresh(of);
    const int piece = thread % 16;
    const int begin = thread / 16;
    const uint16_t* q = row_of(p.q, begin) + 8 * piece;
    const uint16_t* k = row_of(p.k, begin) + 8 * piece;
    const uint32_t to = shared_address(s.q) + static_cast<uint32_t>(kTile * (piece / 8)) +
                        tile_offset(begin, piece % 8 * 8);
    const bool full = work.full();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool live = full || work.chunk.holds(begin + 16 * i);
      const int64_t row = 16 * i;
      copy_16(to + 2048 * i, live ? q + row * p.q.stride[0] : p.q.data, live);
      copy_16(to + 2048 * i + 2 * kTile, live ? k + row * p.k.stride[0] : p.k.data, live);
    }
  }
  __device__ void read_gate(const FactorLane& at, RawGate<kGateF32>& x) const {
    using Word = typename RawGate<kGateF32>::Word;
    const char* from = gate_row(16 * at.r) + at.channel() * kGateBytes;
    const int64_t step = p.gate.stride[0] * kGateBytes;
    if (work.full()) {
#pragma unroll
      for (int i = 0; i < 16; ++i, from += step) {
        x.word[i] = __ldg(reinterpret_cast<const Word*>(from));
      }
    } else {
      const ChunkPlan chunk = work.chunk;
#pragma unroll
      for (int i = 0; i < 16; ++i, from += step) {
        x.word[i] = Word{};
        if (chunk.holds(16 * at.r + i)) x.word[i] = __ldg(reinterpret_cast<const Word*>(from));
      }
    }
  }
  __device__ float read_beta(int position) const {
    if (!work.chunk.holds(position)) return 0.0f;
    return kda_beta(p.beta_form, load_at(p.beta, work.chunk.first + position, work.j));
  }
  /// Asks for the chunk's lines; four threads a position.
  __device__ void prefetch(int of) const {
    const int thread = afresh(of);
    const int position = thread / 4;
    if (!work.more || !work.chunk.holds(position)) return;
    const int part = thread % 4;
    const void* from = part == 0   ? static_cast<const void*>(row_of(p.q, position))
                       : part == 1 ? static_cast<const void*>(row_of(p.k, position))
                                   : gate_row(position) + 256 * (part - 2);
    if (part == 3 && !kGateF32) return;
    prefetch_l2(from);
    prefetch_l2(static_cast<const char*>(from) + 128);
  }
};

template <bool kHalf, bool kGateF32>
__device__ void take_decays(const Inputs<kHalf, kGateF32>& in, const FactorLane& at,
                            const RawGate<kGateF32>& raw, float (&alpha)[2][8][2]) {
  const KdaDevice& p = in.p;
  Gate gate{p.gate_form, kLog2E, p.lower_bound * kLog2E};
  float2 bias = make_float2(0.0f, 0.0f);
  if (p.gate_form != KdaGate::kActivated) {
    gate.slope = -kLog2E * expf(load_at(p.A_log, in.work.j));
    bias.x = load_at(p.dt_bias, in.work.j, at.channel());
    bias.y = load_at(p.dt_bias, in.work.j, at.channel() + 1);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float(&x)[2] = alpha[i / 8][i % 8];
    if constexpr (kGateF32) {
      x[0] = raw.word[i].x, x[1] = raw.word[i].y;
    } else {
      widen_pair<kHalf>(raw.word[i], x[0], x[1]);
    }
  }
  decay_all(gate, bias, alpha);
  if (in.work.full()) return;
  const ChunkPlan chunk = in.work.chunk;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (!chunk.holds(16 * at.r + i)) alpha[i / 8][i % 8][0] = alpha[i / 8][i % 8][1] = 1.0f;
  }
}

/// Where a lane's alpha of the second half waits while the first is worked on: rows of X and Kt
/// that the second half writes later.
__device__ inline float2* stash_of(const FactorLane& at, FactorShared& s, int i) {
  uint8_t* rows = (i < 4 ? s.X : s.record.Kt) + kTile * at.c + 2048 * at.r + 1024;
  return reinterpret_cast<float2*>(rows + 256 * (i % 4) + 8 * at.lane);
}

/// Both halves of the warp's block.
template <bool kHalf>
__device__ void factor_block(const FactorLane& at, Eight& alpha, const float (&half)[2][2],
                             FactorShared& s, InnerSums& sums) {
  auto& inner = *reinterpret_cast<Inner*>(s.record.At);
  uint32_t early[4][2];
  auto* bytes = reinterpret_cast<uint8_t*>(&s);
  factor_half<kHalf, 0>(bytes, at, &inner.inverse_norm[0][0], alpha, half[1], early, sums);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 pair = *stash_of(at, s, i);
    alpha[i][0] = pair.x, alpha[i][1] = pair.y;
  }
  factor_half<kHalf, 1>(bytes, at, &inner.inverse_norm[0][0], alpha, half[0], early, sums);
}

/// The warp's rows of q^ . k^ inside a block of 16, for Aqk.
struct InnerQueries {
  float diagonal[2][2];
  float below[2];
};

/// Adds the two halves of the channels: keys to A of block r, queries for later. Warps of c = 0.
__device__ inline InnerQueries join_halves(const FactorLane& at, const InnerSums& sums,
                                           FactorShared& s) {
  auto& inner = *reinterpret_cast<Inner*>(s.record.At);
  const int g = at.lane / 4;
  const int t = at.lane % 4;
  float x[12];
#pragma unroll
  for (int i = 0; i < 12; ++i) {
    x[i] = inner.sums[at.r][i][at.lane] + (i < 8 ? sums.diagonal[i / 4][i % 4] : sums.below[i - 8]);
  }
  __syncwarp();
  float* A = &inner.sums[at.r][0][0];
  InnerQueries out;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int token = 16 * at.r + 8 * part + g;
    const float self = (s.norm[0][2][token] + s.norm[1][2][token]) *
                       (inner.inverse_norm[0][token] * inner.inverse_norm[1][token]);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int j = 2 * t + e;
      out.diagonal[part][e] = j < g ? x[4 * part + e] : j == g ? self : 0.0f;
      A[(8 * part + g) * 16 + 8 * part + j] = j < g ? s.beta[token] * x[4 * part + 2 + e] : 0.0f;
    }
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    out.below[e] = x[8 + e];
    A[(8 + g) * 16 + 2 * t + e] = s.beta[16 * at.r + 8 + g] * x[10 + e];
  }
  return out;
}

/// Products of queries and of keys of one block of 16 with keys of an earlier one.
struct Between {
  int late;
  int early;
  float q[2][4];
  float k[2][4];
};

__device__ inline void products_between(int pair, int lane, const FactorShared& s, Between& x) {
  x.late = pair == 0 ? 1 : pair == 2 || pair == 3 ? 2 : 3;
  x.early = pair == 1 ? 2 : pair == 3 || pair == 5 ? 1 : 0;
  // Keys of the earlier block, decayed to the later one's begin.
  const uint8_t* keys = pair == 2   ? s.k
                        : pair == 4 ? s.q
                        : pair == 5 ? s.X48
                                    : s.X + 2048 * x.early;
  const uint32_t tile = pair == 5 ? 2048 : kTile;
  const int row = lane & 15;
  const uint32_t a_at =
      shared_address(s.q) +
      static_cast<uint32_t>(2048 * x.late + 128 * row + (((lane >> 4) ^ (row & 7)) << 4));
  const int column = (lane & 7) + (lane >> 4) * 8;
  const uint32_t b_at =
      shared_address(keys) +
      static_cast<uint32_t>(128 * column + ((((lane >> 3) & 1) ^ (column & 7)) << 4));
#pragma unroll
  for (int i = 0; i < 8; ++i) x.q[i / 4][i % 4] = x.k[i / 4][i % 4] = 0.0f;
#pragma unroll
  for (int kk = 0; kk < 8; ++kk) {
    uint32_t q[4], k[4], b[4];
    const uint32_t step = kk % 4 << 5;
    load_matrices((a_at ^ step) + kTile * (kk / 4), q);
    load_matrices((a_at ^ step) + kTile * (kk / 4) + 2 * kTile, k);
    load_matrices((b_at ^ step) + tile * (kk / 4), b);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      mma_16816(x.q[n], q[0], q[1], q[2], q[3], b[2 * n], b[2 * n + 1]);
      mma_16816(x.k[n], k[0], k[1], k[2], k[3], b[2 * n], b[2 * n + 1]);
    }
  }
}

__device__ inline void put_queries(FactorShared& s, Joins& joins, int row, int column, float low,
                                   float high) {
  const uint32_t at = tile_offset(row, column);
  split_pair(low, high, word_at(s.record.At + at), word_at(joins.Aqk_rest + at));
}

__device__ inline void put_between(int pair, int lane, const Between& x, FactorShared& s) {
  auto& joins = *reinterpret_cast<Joins*>(s.k);
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = g + 8 * e;
      const int column = 8 * n + 2 * t;
      put_queries(s, joins, 16 * x.late + row, 16 * x.early + column, x.q[n][2 * e],
                  x.q[n][2 * e + 1]);
      const float beta = s.beta[16 * x.late + row];
      uint16_t* kept = pair < 2 ? &joins.A16[0][pair][row][column]
                                : &joins.A32[0][16 * (x.late - 2) + row][16 * x.early + column];
      uint16_t* rest = kept + (pair < 2 ? 2 * 16 * 24 : 32 * 40);
      split_pair(beta * x.k[n][2 * e], beta * x.k[n][2 * e + 1], *reinterpret_cast<uint32_t*>(kept),
                 *reinterpret_cast<uint32_t*>(rest));
    }
  }
}

/// Zeros in the blocks of 16 above the diagonal of T and Aqk.
__device__ inline void clear_above(int thread, FactorShared& s) {
  auto& joins = *reinterpret_cast<Joins*>(s.k);
  const int row = thread % 64;
  const int which = thread / 64;
  uint8_t* tile = which == 0   ? s.q
                  : which == 1 ? s.q + kTile
                  : which == 2 ? s.record.At
                               : joins.Aqk_rest;
  for (int piece = 2 * (row / 16 + 1); piece < 8; ++piece) {
    *reinterpret_cast<uint4*>(tile + tile_offset(row, 8 * piece)) = make_uint4(0, 0, 0, 0);
  }
}

/// Diagonal blocks of T, A and Aqk from the products inside and between blocks.
__device__ inline void begin_inverse(int thread, const InnerSums& sums, FactorShared& s) {
  const FactorLane at(thread);
  auto& inner = *reinterpret_cast<Inner*>(s.record.At);
  auto& joins = *reinterpret_cast<Joins*>(s.k);
  const bool joined = at.c == 0;
  const bool solves = joined && at.r < 2;
  const int pair = joined ? at.r + 2 : at.r;
  const int block = 2 * at.r + at.lane / 16;
  InnerQueries queries;
  float x[16];
  Between between;
  if (joined) {
    queries = join_halves(at, sums, s);
    sync_some<1, 128>();
  }
  if (solves) {
    solve_column(inner, block, at.lane % 16, x);
  } else {
    products_between(pair, at.lane, s, between);
  }
  __syncthreads();
  clear_above(at.thread, s);
  if (joined) {
    const int row = 16 * at.r + at.lane / 4;
    const int column = 16 * at.r + at.lane % 4 * 2;
    put_queries(s, joins, row, column, queries.diagonal[0][0], queries.diagonal[0][1]);
    put_queries(s, joins, row, column + 8, 0.0f, 0.0f);
    put_queries(s, joins, row + 8, column, queries.below[0], queries.below[1]);
    put_queries(s, joins, row + 8, column + 8, queries.diagonal[1][0], queries.diagonal[1][1]);
  }
  if (solves) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      put_split(s.q, s.q + kTile, 16 * block + i, 16 * block + at.lane % 16, x[i]);
    }
  } else {
    put_between(pair, at.lane, between, s);
  }
  __syncthreads();
}

/// The rest of T.
__device__ inline void join_blocks(int thread, FactorShared& s) {
  const FactorLane at(thread);
  auto& joins = *reinterpret_cast<Joins*>(s.k);
  const int warp = at.thread / 32;
  if (warp < 2) {
    join<16>(32 * warp, 0, &joins.A16[0][warp][0][0], 24, 2 * 16 * 24, s.q, at.lane);
    sync_some<2, 64>();
    join<32>(0, 16 * warp, &joins.A32[0][0][0], 40, 32 * 40, s.q, at.lane);
  }
  fence_tiles();
  __syncthreads();
}

/// Kt = diag(beta) T^T Kr of the warpgroup's channels, block after block of 16 tokens.
__device__ inline void propagate_keys(const FactorShared& s, int group, int t, float (&kt)[32]) {
  const uint32_t T = shared_address(s.q);
  const uint32_t X = shared_address(s.X) + static_cast<uint32_t>(kTile * group);
  const uint32_t rest = shared_address(s.record.Kt) + static_cast<uint32_t>(kTile * group);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 total =
          *reinterpret_cast<const float2*>(&s.total[r][64 * group + 8 * i + 2 * t]);
      kt[4 * i] = r == 0 ? 0.0f : kt[4 * i] * total.x;
      kt[4 * i + 1] = r == 0 ? 0.0f : kt[4 * i + 1] * total.y;
      kt[4 * i + 2] = r == 0 ? 0.0f : kt[4 * i + 2] * total.x;
      kt[4 * i + 3] = r == 0 ? 0.0f : kt[4 * i + 3] * total.y;
    }
    pin(kt);
    wgmma_begin();
    wgmma_64_tiles<true>(kt, tile_of_columns(T + 2048 * r, kTile),
                         tile_of_columns(X + 2048 * r, kTile), true);
    wgmma_64_tiles<true>(kt, tile_of_columns(T + kTile + 2048 * r, kTile),
                         tile_of_columns(X + 2048 * r, kTile), true);
    wgmma_64_tiles<true>(kt, tile_of_columns(T + 2048 * r, kTile),
                         tile_of_columns(rest + 2048 * r, kTile), true);
    wgmma_commit();
    wgmma_wait();
    pin(kt);
  }
}

/// Aqk T.
__device__ inline void propagate_queries(const FactorShared& s, float (&at)[32]) {
  const uint32_t T = shared_address(s.q);
  const uint32_t Aqk = shared_address(s.record.At);
  const uint32_t rest = shared_address(s.k);
#pragma unroll
  for (int i = 0; i < 32; ++i) at[i] = 0.0f;
  pin(at);
  wgmma_begin();
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    wgmma_64_tiles<false>(at, tile_of_rows(Aqk + 32 * r), tile_of_columns(T + 2048 * r, kTile),
                          true);
    wgmma_64_tiles<false>(at, tile_of_rows(rest + 32 * r), tile_of_columns(T + 2048 * r, kTile),
                          true);
    wgmma_64_tiles<false>(at, tile_of_rows(Aqk + 32 * r),
                          tile_of_columns(T + kTile + 2048 * r, kTile), true);
  }
  wgmma_commit();
  wgmma_wait();
  pin(at);
}

/// At into the record; by the first warpgroup.
__device__ inline void put_at(int of, FactorShared& s) {
  float at[32];
  propagate_queries(s, at);
  sync_some<3, 128>();
  const int thread = afresh(of);
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const int column = thread % 4 * 2;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 scale = *reinterpret_cast<const float2*>(&s.beta[8 * i + column]);
    uint8_t* to = s.record.At + tile_offset(row, 8 * i + column);
    word_at(to) = pack_f16(scale.x * at[4 * i], scale.y * at[4 * i + 1]);
    word_at(to + 1024) = pack_f16(scale.x * at[4 * i + 2], scale.y * at[4 * i + 3]);
  }
}

/// Kt into the record; a warpgroup has 64 channels.
__device__ inline void put_kt(int of, FactorShared& s) {
  float kt[32];
  propagate_keys(s, of / 128, of % 4, kt);
  if (of < 128) {
    sync_some<3, 128>();
  } else {
    sync_some<4, 128>();
  }
  const int thread = afresh(of);
  const int row = thread / 32 % 4 * 16 + thread % 32 / 4;
  const float low = s.beta[row];
  const float high = s.beta[row + 8];
  uint8_t* tile = s.record.Kt + kTile * (thread / 128);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    uint8_t* to = tile + tile_offset(row, 8 * i + thread % 4 * 2);
    word_at(to) = pack_f16(low * kt[4 * i], low * kt[4 * i + 1]);
    word_at(to + 1024) = pack_f16(high * kt[4 * i + 2], high * kt[4 * i + 3]);
  }
}

/// Gates, totals over blocks and norms; alpha of the first half stays, that of the second is
/// stashed. Inputs are on their way.
template <bool kHalf, bool kGateF32>
__device__ void begin_chunk(const Inputs<kHalf, kGateF32>& in, const RawGate<kGateF32>& raw,
                            int thread, FactorShared& s, Eight& first, float (&half)[2][2]) {
  const FactorLane at(thread);
  float alpha[2][8][2];
  if (thread < kChunk) s.beta[thread] = in.read_beta(thread);
  take_decays(in, at, raw, alpha);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float product = alpha[i / 2][0][i % 2];
#pragma unroll
    for (int m = 1; m < 8; ++m) product *= alpha[i / 2][m][i % 2];
    half[i / 2][i % 2] = product;
  }
  *reinterpret_cast<float2*>(&s.total[at.r][at.channel()]) =
      make_float2(half[0][0] * half[1][0], half[0][1] * half[1][1]);
  copy_wait();
  if (thread == 0) copy_bulk_read_wait();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    *stash_of(at, s, i) = make_float2(alpha[1][i][0], alpha[1][i][1]);
    first[i][0] = alpha[0][i][0], first[i][1] = alpha[0][i][1];
  }
  take_norms<kHalf>(at, s);
  __syncthreads();
  auto& inner = *reinterpret_cast<Inner*>(s.record.At);
  const int token = 16 * at.r + at.lane % 16;
  const int which = at.lane / 16;
  const float sum = s.norm[0][which][token] + s.norm[1][which][token];
  inner.inverse_norm[which][token] = in.p.qk_normalized ? 1.0f : rsqrtf(sum + 1e-6f);
  if (thread < kWidth) {
    s.record.gamma[thread] =
        s.total[0][thread] * s.total[1][thread] * (s.total[2][thread] * s.total[3][thread]);
  }
  __syncwarp();
}

/// One record, its q, k and gate on the way. `next` is asked for in between.
template <bool kHalf, bool kGateF32>
__device__ void factor_chunk(const Inputs<kHalf, kGateF32>& in, const RawGate<kGateF32>& raw,
                             const Inputs<kHalf, kGateF32>& next, int thread, FactorShared& s) {
  InnerSums sums;
  {
    Eight alpha;
    float half[2][2];
    begin_chunk(in, raw, thread, s, alpha, half);
    next.prefetch(thread);
    const FactorLane at(thread);
    factor_block<kHalf>(at, alpha, half, s, sums);
    if (at.c == 1) {
      auto& inner = *reinterpret_cast<Inner*>(s.record.At);
#pragma unroll
      for (int i = 0; i < 12; ++i) {
        inner.sums[at.r][i][at.lane] = i < 8 ? sums.diagonal[i / 4][i % 4] : sums.below[i - 8];
      }
    }
  }
  __syncthreads();
  begin_inverse(thread, sums, s);
  join_blocks(thread, s);
  if (thread < 128) put_at(afresh(thread), s);
  put_kt(afresh(thread), s);
  fence_tiles();
  __syncthreads();
}

}  // namespace linestate::kda_sm90
