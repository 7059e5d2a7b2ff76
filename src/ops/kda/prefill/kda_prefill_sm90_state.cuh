// The state kernel: a warpgroup holds 64 rows of S [V, K] as the accumulators of its products,
// thread (warp, g, t) rows 16 warp + g and + 8, channels 8 i + 2 t and + 1. Records come through a
// ring that a warp of its own fills.
#pragma once

#include "base/int_math.h"
#include "ops/kda/prefill/kda_prefill_sm90.cuh"

namespace linestate::kda_sm90 {

constexpr int kStages = 3;

/// A record at a multiple of 1024 bytes.
struct Stage {
  Record record;
  uint8_t pad[round_up(sizeof(Record), 1024) - sizeof(Record)];
};

template <int kGroups>
struct StateShared {
  Stage stage[kStages];
  uint8_t values[kStages][kGroups][kTile];  // v, [64 tokens, 64]; then the output
  uint32_t largest[kGroups][2][4];          // S and v of a chunk, a warp each
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

struct StateLane {
  int group;   // warpgroup of the block
  int half;    // rows 64 half .. + 63 of S
  int thread;  // of 128
  int warp;
  int g;
  int t;

  __device__ StateLane(int thread_in, int first_half) {
    thread_in = afresh(thread_in);
    group = thread_in / 128;
    half = first_half + group;
    thread = thread_in % 128;
    warp = thread / 32;
    g = thread % 32 / 4;
    t = thread % 4;
  }
  __device__ void sync() const { sync_some(1 + group, 128); }
  __device__ int row(int e) const { return 64 * half + 16 * warp + g + 8 * e; }
};

/// Rows of S between the pool and registers. REQUIRES: K contiguous in the pool, pairs aligned.
__device__ inline void load_state(const KdaDevice& p, const StateLane& lane, int64_t slot,
                                  int64_t j, bool fresh, float (&S)[64]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int64_t at = p.state.offset(slot, j, lane.row(e), 8 * i + 2 * lane.t);
      float2 pair = make_float2(0.0f, 0.0f);
      if (fresh) {
      } else if (p.state.dtype == DType::kF32) {
        pair = *reinterpret_cast<const float2*>(static_cast<const float*>(p.state.data) + at);
      } else {
        const uint32_t bits =
            *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(p.state.data) + at);
        if (p.state.dtype == DType::kBF16) {
          widen_pair<false>(bits, pair.x, pair.y);
        } else {
          widen_pair<true>(bits, pair.x, pair.y);
        }
      }
      S[4 * i + 2 * e] = pair.x;
      S[4 * i + 2 * e + 1] = pair.y;
    }
  }
}

__device__ inline void store_state(const KdaDevice& p, const StateLane& lane, int64_t n,
                                   int64_t slot, int64_t j, const float (&S)[64]) {
  bool fits = true;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int64_t at = p.state.offset(slot, j, lane.row(e), 8 * i + 2 * lane.t);
      const float low = S[4 * i + 2 * e];
      const float high = S[4 * i + 2 * e + 1];
      if (p.state.dtype == DType::kF32) {
        *reinterpret_cast<float2*>(static_cast<float*>(p.state.data) + at) = make_float2(low, high);
        continue;
      }
      auto* to = reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.state.data) + at);
      if (p.state.dtype == DType::kBF16) {
        *to = pack_bf16(low, high);
      } else {
        const uint32_t bits = pack_f16(low, high);
        fits &= !f16_overflowed(bits, low) && !f16_overflowed(bits >> 16, high);
        *to = bits;
      }
    }
  }
  if (!fits) raise_overflow(p.status, n, slot, p.layer);
}

/// Starts the copy of this warpgroup's half of v, one group of copies; positions outside the row
/// become zero. No branches: it runs beside products.
__device__ inline void fetch_values(const KdaDevice& p, const ChunkPlan& chunk, int64_t j,
                                    const StateLane& lane, uint8_t* values) {
  const int piece = lane.thread % 8;
  const auto* v =
      static_cast<const uint16_t*>(p.v.data) + j * p.v.stride[1] + 64 * lane.half + 8 * piece;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int position = lane.thread / 8 + 16 * i;
    const bool live = chunk.holds(position);
    copy_16(shared_address(values + tile_offset(position, 8 * piece)),
            v + (live ? (chunk.first + position) * p.v.stride[0] : 0), live);
  }
  copy_commit();
}

__device__ inline void store_out(const KdaDevice& p, const ChunkPlan& chunk, int64_t j,
                                 const StateLane& lane, const uint8_t* values) {
  const int piece = lane.thread % 8;
  auto* out = static_cast<uint16_t*>(p.out.data) + j * p.out.stride[1] + 64 * lane.half + 8 * piece;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int position = lane.thread / 8 + 16 * i;
    const auto bits = *reinterpret_cast<const uint4*>(values + tile_offset(position, 8 * piece));
    store_16(out + (chunk.first + position) * p.out.stride[0], bits, chunk.holds(position));
  }
}

/// Address of lane's row for moving fragments of 16 positions by 16 rows of the warp.
__device__ inline uint32_t fragment_address(const uint8_t* values, const StateLane& lane, int k) {
  const int id = lane.thread % 32;
  const int position = 16 * k + (id & 7) + (id & 16) / 2;
  return shared_address(values + tile_offset(position, 16 * lane.warp + (id & 8)));
}

/// Operands from accumulators: 16 columns of the accumulators are one operand.
template <int kCount>
__device__ void pack_operands(const float (&x)[kCount], uint32_t (&out)[kCount / 8][4]) {
#pragma unroll
  for (int k = 0; k < kCount / 8; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[k][e] = pack_f16(x[8 * k + 2 * e], x[8 * k + 2 * e + 1]);
  }
}

/// X^T = V^T - S Kd^T as operands, in place of v; S and its products are scaled by `up`.
template <bool kHalf>
__device__ void residual(const float (&predicted)[32], float up, uint32_t (&X)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float low;
      float high;
      widen_pair<kHalf>(X[k][e], low, high);
      X[k][e] = pack_f16(fmaf(low, up, -predicted[8 * k + 2 * e]),
                         fmaf(high, up, -predicted[8 * k + 2 * e + 1]));
    }
  }
}

/// The largest magnitude of 16-bit values, as bits: positive ones order like integers.
template <int kCount>
__device__ uint32_t largest_of(const uint32_t (&x)[kCount][4]) {
  uint32_t most[4] = {};
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) most[e] = max_halves(most[e], x[k][e] & 0x7fff7fffu);
  }
  return max_halves(max_halves(most[0], most[1]), max_halves(most[2], most[3]));
}

__device__ inline uint32_t largest_of_warp(uint32_t pair) {
  return __reduce_max_sync(kAllLanes, max(pair & 0xffffu, pair >> 16));
}

/// The largest magnitudes among S16 and among v of the warpgroup, as bits; meets it once.
struct Largest {
  uint32_t state;
  uint32_t value;

  __device__ Largest(const StateLane& lane, const uint32_t (&S16)[8][4], const uint32_t (&v)[4][4],
                     uint32_t (&largest)[2][4]) {
    largest[0][lane.warp] = largest_of_warp(largest_of(S16));
    largest[1][lane.warp] = largest_of_warp(largest_of(v));
    lane.sync();
    state = most(largest[0]);
    value = most(largest[1]);
  }
  __device__ static uint32_t most(const uint32_t (&x)[4]) {
    return max(max(x[0], x[1]), max(x[2], x[3]));
  }
};

/// Power of two by which S and v of a chunk are multiplied so that the operands made of them are
/// normal f16 numbers: 1 for all but unusual magnitudes. A function of this chunk's S and v alone,
/// so that a row may be split on the grid. Every thread of the warpgroup gets the same.
template <bool kHalf>
__device__ float scale_of(const StateLane& lane, const Largest& found, const float (&S)[64],
                          uint32_t (&largest)[2][4]) {
  const float value = kHalf ? f16_bits_to_f32(found.value) : bf16_bits_to_f32(found.value);
  float top = fmaxf(f16_bits_to_f32(found.state), value);
  if (top >= 0.0078125f && top <= 2048.0f) return 1.0f;
  // S again, exactly: it may lie beyond f16.
  float exact = 0.0f;
#pragma unroll
  for (int i = 0; i < 64; ++i) exact = fmaxf(exact, fabsf(S[i]));
  lane.sync();
  largest[0][lane.warp] = __reduce_max_sync(kAllLanes, __float_as_uint(exact));
  lane.sync();
  top = fmaxf(__uint_as_float(Largest::most(largest[0])), value);
  if (!(top > 0.0f && top < INFINITY)) return 1.0f;
  return exp2f(static_cast<float>(min(max(4 - ilogbf(top), -120), 120)));
}

template <bool kHalf>
__device__ void put_out(uint8_t* values, const StateLane& lane, const float (&o)[32], float scale) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t bits[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float low = scale * o[8 * k + 2 * e];
      const float high = scale * o[8 * k + 2 * e + 1];
      bits[e] = kHalf ? pack_f16(low, high) : pack_bf16(low, high);
    }
    store_matrices_transposed(fragment_address(values, lane, k), bits);
  }
}

/// x = S Kd^T or S Qd^T, begun and committed.
__device__ inline void start_products(float (&x)[32], const uint32_t (&S16)[8][4], uint32_t tile) {
#pragma unroll
  for (int i = 0; i < 32; ++i) x[i] = 0.0f;
  pin(x);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    wgmma_64(x, S16[k], tile_of_rows(tile + (k >> 2) * kTile + (k & 3) * 32), k > 0);
  }
  wgmma_commit();
}

__device__ inline void scale_state(float (&S)[64], float factor) {
#pragma unroll
  for (int i = 0; i < 64; ++i) S[i] *= factor;
}

/// One chunk; `meanwhile` runs beside the first products and must not branch.
template <bool kHalf, typename Meanwhile>
__device__ void state_chunk(const StateLane& lane, const Record& record, uint8_t* values,
                            uint32_t (&largest)[2][4], float scale, float (&S)[64],
                            const Meanwhile& meanwhile) {
  const uint32_t Kd = shared_address(record.Kd);
  const uint32_t Qd = shared_address(record.Qd);
  const uint32_t Kt = shared_address(record.Kt);
  const uint32_t At = shared_address(record.At);
  uint32_t S16[8][4];
  uint32_t X[4][4];
  float x[32];
  pack_operands(S, S16);
  start_products(x, S16, Kd);
  meanwhile();
#pragma unroll
  for (int k = 0; k < 4; ++k) load_matrices_transposed(fragment_address(values, lane, k), X[k]);
  const Largest found(lane, S16, X, largest);
  wgmma_wait();
  pin(x);
  const float up = scale_of<kHalf>(lane, found, S, largest);
  if (up != 1.0f) {
    scale_state(S, up);
    pack_operands(S, S16);
    start_products(x, S16, Kd);
    wgmma_wait();
    pin(x);
  }
  residual<kHalf>(x, up, X);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float2 decay = *reinterpret_cast<const float2*>(record.gamma + 8 * i + 2 * lane.t);
    S[4 * i] *= decay.x;
    S[4 * i + 1] *= decay.y;
    S[4 * i + 2] *= decay.x;
    S[4 * i + 3] *= decay.y;
  }
  pin(S);
  pin(x);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    wgmma_128_columns(S, X[k], tile_of_columns(Kt + k * 2048, kTile), true);
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    wgmma_64(x, S16[k], tile_of_rows(Qd + (k >> 2) * kTile + (k & 3) * 32), k > 0);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_64(x, X[k], tile_of_rows(At + k * 32), true);
  wgmma_commit();
  wgmma_wait();
  pin(S);
  pin(x);
  if (up != 1.0f) scale_state(S, 1.0f / up);
  put_out<kHalf>(values, lane, x, scale * (1.0f / up));
}

/// Stores the snapshots of row n wanted after more than `from` and up to `to` tokens.
__device__ inline void take_snapshots(const KdaDevice& p, const DeviceRow& row, int64_t n,
                                      int64_t from, int64_t to, int64_t j, const StateLane& lane,
                                      const float (&S)[64]) {
  for (int64_t m = 0; m < p.snapshots.count; ++m) {
    const int64_t wanted = snapshot_after(p.snapshots, p.rows, n, row, row.valid, m);
    if (wanted <= from || wanted > to) continue;
    store_state(p, lane, n, p.snapshots.slot.at(m), j, S);
  }
}

/// The chunks of one row; `turn` counts chunks of the block, by which the ring turns.
template <bool kHalf, int kGroups>
__device__ void state_row(const KdaDevice& p, const DeviceRow& row, int64_t n, int64_t j,
                          const StateLane& lane, StateShared<kGroups>& s, uint32_t& turn) {
  const Chunks chunks(row);
  const auto values = [&](uint32_t at) { return s.values[at % kStages][lane.group]; };
  float S[64];
  fetch_values(p, chunks.at(0), j, lane, values(turn));
  fetch_values(p, chunks.at(1), j, lane, values(turn + 1));
  load_state(p, lane, row.slot, j, row.fresh, S);
  int64_t next = next_snapshot(p.snapshots, p.rows, n, row, row.valid, 0);
  copy_wait_but<1>();
  lane.sync();
  for (int32_t chunk = 0; chunk < chunks.count(); ++chunk, ++turn) {
    const uint32_t at = turn % kStages;
    const int64_t done = max(int64_t{chunk} * kChunk - chunks.lead, int64_t{0});
    const int64_t after = min(int64_t{chunk + 1} * kChunk - chunks.lead, row.valid);
    // Inside the chunk: from the state at its begin, kda_advance_snapshots_cuda goes on.
    if (next < after) take_snapshots(p, row, n, done, after - 1, j, lane, S);
    barrier_wait(shared_address(&s.full[at]), turn / kStages & 1);
    state_chunk<kHalf>(lane, s.stage[at].record, values(turn), s.largest[lane.group], p.scale, S,
                       [&] {
                         store_out(p, chunks.at(chunk - 1), j, lane, values(turn + 2));
                         // Each thread refills exactly what it stored the output from.
                         fetch_values(p, chunks.at(chunk + 2), j, lane, values(turn + 2));
                       });
    barrier_arrive(shared_address(&s.empty[at]));
    copy_wait_but<1>();
    lane.sync();
    if (next > after) continue;
    take_snapshots(p, row, n, after - 1, after, j, lane, S);
    next = next_snapshot(p.snapshots, p.rows, n, row, row.valid, after);
  }
  store_out(p, chunks.at(chunks.count() - 1), j, lane, values(turn + 2));
  store_state(p, lane, n, row.slot, j, S);
}

}  // namespace linestate::kda_sm90
