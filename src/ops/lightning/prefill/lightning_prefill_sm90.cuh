// Chunked Lightning prefill on Hopper: what its kernels share.
//
// With positions i, j of a chunk of n tokens and S0 the state before it:
//   o_i = scale * (lambda^(i+1) q_i S0 + sum_{j<=i} lambda^(i-j) (q_i . k_j) v_j)
//   S   = lambda^n S0 + sum_j k_j (lambda^(n-1-j) v_j)^T
// q, k and v enter as they are (bf16). S, the weighted q k^T and the decayed v are each two bf16,
// high + low, so nothing is rounded to less than 16 bits, whatever its size.
//
// A block has half of the columns of V of one head. One warpgroup holds S^T [64, 128] as the
// accumulators of its products and leaves it in shared memory for the other, which makes outputs.
#pragma once

#include <cstdint>

#include "cuda/hopper_bf16.cuh"
#include "ops/lightning/lightning_lane_step.cuh"

namespace linestate::lightning_sm90 {

constexpr int kChunk = 64;
constexpr int kWidth = 128;    // K and V
constexpr int kHalf = 64;      // columns of V of a block
constexpr int kThreads = 256;  // that fetch chunks
constexpr int kTile = 8192;    // bytes of 64 rows of 64 columns

/// Long rows of few heads are cut into segments of 16 chunks, counted from the row's first, which
/// run side by side. The last has what is left, up to 31 chunks.
constexpr int kSegmentChunks = 16;
constexpr int64_t kSegmentHeads = 16;
/// Segment s of a row is known by the packed token first + kMark s: at least two segments are at
/// least 31 chunks and one token less two partial ones, so every segment has kMark tokens.
constexpr int64_t kMark = 960;

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
  /// Positions [begin, behind) of a chunk belong to the row.
  __device__ int begin(int32_t chunk) const { return chunk == 0 ? lead : 0; }
  __device__ int behind(int32_t chunk) const { return min(kChunk, end - kChunk * chunk); }
};

/// What a block works on: one segment of a row.
struct Work {
  DeviceRow row;
  int64_t n;
  int32_t segment;
  int32_t segments;
  int32_t begin;  // chunks
  int32_t end;
};

__device__ inline int32_t segments_of(const LightningDevice& p, int32_t chunks) {
  return p.H <= kSegmentHeads && chunks >= 2 * kSegmentChunks ? chunks / kSegmentChunks : 1;
}

/// Segment `segment` of row n.
__device__ inline Work segment_work(const LightningDevice& p, const DeviceRow& row, int64_t n,
                                    int32_t segment) {
  const int32_t chunks = Chunks(row).count();
  const int32_t segments = segments_of(p, chunks);
  const int32_t begin = segment * kSegmentChunks;
  return {row,      n,     segment,
          segments, begin, segment + 1 == segments ? chunks : begin + kSegmentChunks};
}

/// The segment whose mark lies in tokens [kMark e, kMark (e + 1)), as long as it is no row's first
/// (segments = 0 otherwise). By a whole warp.
__device__ inline Work marked_segment(const LightningDevice& p, int64_t e) {
  const int64_t t = kMark * e + kMark - 1;
  if (t >= p.rows.capacity) return {};
  const int64_t n = row_of_token(p.rows, t);
  if (n >= p.rows.count) return {};
  const DeviceRow row = read_prefill_row(p.rows, n, nullptr);
  if (row.valid == 0 || t < row.token_begin) return {};
  const auto segment = static_cast<int32_t>((t - row.token_begin) / kMark);
  const Work work = segment_work(p, row, n, segment);
  return segment > 0 && segment < work.segments ? work : Work{};
}

/// Where the state before a segment, or what an earlier segment adds to it, lies: by the mark of
/// the segment, head and half of V.
__device__ inline float* segment_state(const LightningDevice& p, float* states, const Work& work,
                                       int32_t segment, int64_t h, int64_t half) {
  const int64_t e = (work.row.token_begin + kMark * segment) / kMark;
  return states + ((e * p.H + h) * 2 + half) * (kHalf * kWidth);
}

/// A thread of a warpgroup: rows 16 warp + g and + 8 of its 64, columns 8 i + 2 t and + 1.
struct Lane {
  int thread;  // of 128
  int warp;
  int g;
  int t;

  __device__ explicit Lane(int thread_in)
      : thread(thread_in), warp(thread_in / 32), g(thread_in % 32 / 4), t(thread_in % 4) {}
  __device__ int row(int e) const { return 16 * warp + g + 8 * e; }
};

/// lambda^m at kChunk + m for m up to 64; zeros below, so that pairs in the future weigh nothing.
struct Powers {
  float at[2 * kChunk + 4];

  __device__ void fill(float slope, int thread) {
    if (thread > 2 * kChunk) return;
    const int m = thread - kChunk;
    at[thread] = m < 0 ? 0.0f : static_cast<float>(lightning_decay_f64(slope, m));
  }
  __device__ float operator()(int m) const { return at[kChunk + m]; }
};

/// Starts the copy of a chunk of q, k or v into tiles of 64 columns, from `column` on, by kCount
/// threads; positions outside the row become zero.
template <int kColumns, int kCount>
__device__ void fetch_chunk(const DeviceView<3>& x, const Chunks& chunks, int32_t chunk, int64_t h,
                            int64_t column, int thread, uint8_t* tiles) {
  constexpr int kPieces = kColumns / 8;
  constexpr int kRows = kCount / kPieces;
  const int piece = thread % kPieces;
  const int position = thread / kPieces;
  const int32_t place = kChunk * chunk + position;
  const auto* column_at = static_cast<const uint16_t*>(x.data) + x.offset(0, h, column + 8 * piece);
  const uint16_t* const lead = column_at + chunks.token(chunks.lead) * x.stride[0];
  const uint16_t* from = column_at + chunks.token(place) * x.stride[0];
  // Rows apart by a multiple of 8 have the same permutation of pieces.
  const uint32_t to =
      shared_address(tiles + piece / 8 * kTile) + tile_offset(position, piece % 8 * 8);
#pragma unroll
  for (int i = 0; i < kChunk / kRows; ++i) {
    const bool live = chunks.holds(place + kRows * i);
    copy_16(to + 128 * kRows * i, live ? from : lead, live);
    from += kRows * x.stride[0];
  }
}

/// Everybody's copies have come and may be read by products.
template <int kCount>
__device__ void await_chunk() {
  copy_wait();
  fence_tiles();
  sync_some<1, kCount>();
}

/// S^T of 64 columns of V in the accumulators of a warpgroup.
using StateT = float[64];

/// Calls visit(i, at) for the places of S in a thread: accumulator, and offset in the pool. Offsets
/// are made on the way: 64 of them do not fit beside S.
template <typename Visit>
__device__ void each_place(const LightningDevice& p, const Lane& lane, int64_t slot, int64_t h,
                           int64_t half, const Visit& visit) {
  int64_t at = p.state.offset(slot, h, 2 * lane.t, kHalf * half + lane.row(0));
#pragma unroll
  for (int i = 0; i < 64; i += 4) {
    visit(i, at);
    visit(i + 1, at + p.state.stride[2]);
    visit(i + 2, at + 8 * p.state.stride[3]);
    visit(i + 3, at + p.state.stride[2] + 8 * p.state.stride[3]);
    at += 8 * p.state.stride[2];
  }
}

__device__ inline void load_state(const LightningDevice& p, const Lane& lane, const DeviceRow& row,
                                  int64_t h, int64_t half, StateT& S) {
#pragma unroll
  for (float& s : S) s = 0.0f;
  if (row.fresh) return;
  if (p.state.dtype == DType::kF32) {
    const auto* from = static_cast<const float*>(p.state.data);
    each_place(p, lane, row.slot, h, half, [&](int i, int64_t at) { S[i] = from[at]; });
    return;
  }
  each_place(p, lane, row.slot, h, half,
             [&](int i, int64_t at) { S[i] = load_f32(p.state.data, p.state.dtype, at); });
}

__device__ inline void store_state(const LightningDevice& p, const Lane& lane, int64_t n,
                                   int64_t slot, int64_t h, int64_t half, const StateT& S) {
  if (p.state.dtype == DType::kF32) {
    auto* to = static_cast<float*>(p.state.data);
    each_place(p, lane, slot, h, half, [&](int i, int64_t at) { to[at] = S[i]; });
    return;
  }
  bool fits = true;
  each_place(p, lane, slot, h, half,
             [&](int i, int64_t at) { fits &= store_f32(p.state.data, p.state.dtype, at, S[i]); });
  if (!fits) raise_overflow(p.status, n, slot, p.layer);
}

/// S^T to and from the workspace, as it lies in registers.
__device__ inline void keep_state(float* to, const Lane& lane, const StateT& S) {
#pragma unroll
  for (int i = 0; i < 64; ++i) to[128 * i + lane.thread] = S[i];
}

__device__ inline void decay_state(LightningDecay lambda, StateT& S) {
#pragma unroll
  for (float& s : S) s = lambda.hi == 1.0f ? fmaf(lambda.lo, s, s) : lambda.hi * s;
}

__device__ inline LightningDecay chunk_decay(float slope, LightningDecay whole, int tokens) {
  return tokens == kChunk ? whole : lightning_decay(slope, tokens);
}

/// S <- lambda^n S + sum_j k_j (lambda^(n-1-j) v_j)^T for positions up to `behind`; v one tile of
/// 64 columns, k two.
__device__ inline void advance_state(const Lane& lane, const Powers& powers, const uint8_t* k,
                                     const uint8_t* v, int behind, LightningDecay lambda,
                                     StateT& S) {
  const int id = lane.thread % 32;
  const uint32_t keys = shared_address(k);
  uint32_t high[4][4];
  uint32_t low[4][4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int position = 16 * step + (id & 7) + (id & 16) / 2;
    uint32_t bits[4];
    load_matrices_transposed(shared_address(v + tile_offset(position, 16 * lane.warp + (id & 8))),
                             bits);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int j = 16 * step + 2 * lane.t + e / 2 * 8;
      split_bf16(__uint_as_float(bits[e] << 16) * powers(behind - 1 - j),
                 __uint_as_float(bits[e] & 0xffff0000u) * powers(behind - 2 - j), high[step][e],
                 low[step][e]);
    }
  }
  decay_state(lambda, S);
  pin(S);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint64_t b = tile_of_columns(keys + step * 2048, kTile);
    wgmma_bf16_128_columns(S, high[step], b, true);
    wgmma_bf16_128_columns(S, low[step], b, true);
  }
  wgmma_commit();
  wgmma_wait();
  pin(S);
}

}  // namespace linestate::lightning_sm90
