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

template <bool kHalf, bool kGateF32>
struct Inputs {
  static constexpr int kGateBytes = kGateF32 ? 4 : 2;
  const KdaDevice& p;
  ChunkPlan chunk;
  int64_t j;

  __device__ const uint16_t* row_of(const DeviceView<3>& x, int64_t head, int position) const {
    return static_cast<const uint16_t*>(x.data) + (chunk.first + position) * x.stride[0] +
           head * x.stride[1];
  }
  __device__ const char* gate_row(int position) const {
    return static_cast<const char*>(p.gate.data) +
           ((chunk.first + position) * p.gate.stride[0] + j * p.gate.stride[1]) * kGateBytes;
  }
  /// Starts the copy of q and k; positions outside the row become zero.
  __device__ void fetch(int thread, FactorShared& s) const {
    const int64_t head = j / (p.HV / p.H);
    const int piece = thread % 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = thread / 16 + 16 * i;
      const bool live = chunk.holds(position);
      const int from = live ? position : chunk.lo;
      const uint32_t to =
          static_cast<uint32_t>(kTile * (piece / 8)) + tile_offset(position, piece % 8 * 8);
      copy_16(shared_address(s.q) + to, row_of(p.q, head, from) + 8 * piece, live);
      copy_16(shared_address(s.k) + to, row_of(p.k, head, from) + 8 * piece, live);
    }
  }
  __device__ void read_gate(const FactorLane& at, RawGate<kGateF32>& x) const {
    const char* from = gate_row(16 * at.r) + at.channel() * kGateBytes;
    const int64_t step = p.gate.stride[0] * kGateBytes;
#pragma unroll
    for (int i = 0; i < 16; ++i, from += step) {
      using Word = typename RawGate<kGateF32>::Word;
      x.word[i] = Word{};
      if (chunk.holds(16 * at.r + i)) x.word[i] = __ldg(reinterpret_cast<const Word*>(from));
    }
  }
  __device__ float read_beta(int position) const {
    if (!chunk.holds(position)) return 0.0f;
    return kda_beta(p.beta_form, load_at(p.beta, chunk.first + position, j));
  }
  /// Asks for the chunk's lines; four threads a position.
  __device__ void prefetch(int thread) const {
    const int position = thread / 4;
    if (!chunk.holds(position)) return;
    const int64_t head = j / (p.HV / p.H);
    const int part = thread % 4;
    const void* from = part == 0   ? static_cast<const void*>(row_of(p.q, head, position))
                       : part == 1 ? static_cast<const void*>(row_of(p.k, head, position))
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
    gate.slope = -kLog2E * expf(load_at(p.A_log, in.j));
    bias.x = load_at(p.dt_bias, in.j, at.channel());
    bias.y = load_at(p.dt_bias, in.j, at.channel() + 1);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if constexpr (kGateF32) {
      alpha[i / 8][i % 8][0] = raw.word[i].x, alpha[i / 8][i % 8][1] = raw.word[i].y;
    } else {
      widen_pair<kHalf>(raw.word[i], alpha[i / 8][i % 8][0], alpha[i / 8][i % 8][1]);
    }
  }
  decay_all(gate, bias, alpha);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (!in.chunk.holds(16 * at.r + i)) alpha[i / 8][i % 8][0] = alpha[i / 8][i % 8][1] = 1.0f;
  }
}

/// Both halves of the warp's block.
template <bool kHalf>
__device__ void factor_block(const FactorLane& at, float (&alpha)[2][8][2],
                             const float (&half)[2][2], FactorShared& s, InnerSums& sums) {
  auto& inner = *reinterpret_cast<Inner*>(s.record.At);
  uint32_t early[4][2];
  auto* bytes = reinterpret_cast<uint8_t*>(&s);
  factor_half<kHalf, 0>(bytes, at, &inner.inverse_norm[0][0], alpha[0], half[1], early, sums);
  factor_half<kHalf, 1>(bytes, at, &inner.inverse_norm[0][0], alpha[1], half[0], early, sums);
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

/// T and Aqk from the products inside and between blocks. Ends with all of them written.
__device__ inline void invert(int thread, const InnerSums& sums, FactorShared& s) {
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

/// Kt and At into the record.
__device__ inline void propagate(int thread, FactorShared& s) {
  const int group = thread / 128;
  const int warp = thread / 32 % 4;
  const int g = thread % 32 / 4;
  const int t = thread % 4;
  float kt[32];
  float at[32];
  propagate_keys(s, group, t, kt);
  if (group == 0) propagate_queries(s, at);
  sync_some(3 + group, 128);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = 16 * warp + g + 8 * e;
    const float beta = s.beta[row];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t offset = tile_offset(row, 8 * i + 2 * t);
      word_at(s.record.Kt + kTile * group + offset) =
          pack_f16(beta * kt[4 * i + 2 * e], beta * kt[4 * i + 2 * e + 1]);
      if (group == 0) {
        const float2 scale = *reinterpret_cast<const float2*>(&s.beta[8 * i + 2 * t]);
        word_at(s.record.At + offset) =
            pack_f16(scale.x * at[4 * i + 2 * e], scale.y * at[4 * i + 2 * e + 1]);
      }
    }
  }
}

/// One record, its q, k and gate on the way. `next` is asked for in between.
template <bool kHalf, bool kGateF32>
__device__ void factor_chunk(const Inputs<kHalf, kGateF32>& in, const RawGate<kGateF32>& raw,
                             const Inputs<kHalf, kGateF32>* next, int thread, FactorShared& s) {
  InnerSums sums;
  {
    const FactorLane at(thread);
    float alpha[2][8][2];
    if (thread < kChunk) s.beta[thread] = in.read_beta(thread);
    take_decays(in, at, raw, alpha);
    float half[2][2];
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
    take_norms<kHalf>(at, s);
    __syncthreads();
    auto& inner = *reinterpret_cast<Inner*>(s.record.At);
    {
      const int token = 16 * at.r + at.lane % 16;
      const int which = at.lane / 16;
      inner.inverse_norm[which][token] =
          in.p.qk_normalized ? 1.0f
                             : rsqrtf(s.norm[0][which][token] + s.norm[1][which][token] + 1e-6f);
    }
    if (thread < kWidth) {
      s.record.gamma[thread] =
          s.total[0][thread] * s.total[1][thread] * (s.total[2][thread] * s.total[3][thread]);
    }
    __syncwarp();
    if (next != nullptr) next->prefetch(thread);
    factor_block<kHalf>(at, alpha, half, s, sums);
    if (at.c == 1) {
#pragma unroll
      for (int i = 0; i < 12; ++i) {
        inner.sums[at.r][i][at.lane] = i < 8 ? sums.diagonal[i / 4][i % 4] : sums.below[i - 8];
      }
    }
  }
  __syncthreads();
  invert(thread, sums, s);
  propagate(thread, s);
  fence_tiles();
  __syncthreads();
}

}  // namespace linestate::kda_sm90
