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

/// Starts the copy of this warpgroup's half of v; positions outside the row become zero. One group
/// of copies, empty when there is no such chunk.
__device__ inline void fetch_values(const KdaDevice& p, const Chunks& chunks, int32_t index,
                                    int64_t j, const StateLane& lane, uint8_t* values) {
  if (index >= chunks.count()) {
    copy_commit();
    return;
  }
  const ChunkPlan chunk = chunks.at(index);
  const int piece = lane.thread % 8;
  const auto* v =
      static_cast<const uint16_t*>(p.v.data) + j * p.v.stride[1] + 64 * lane.half + 8 * piece;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int position = lane.thread / 8 + 16 * i;
    const bool live = chunk.holds(position);
    copy_16(shared_address(values + tile_offset(position, 8 * piece)),
            v + (chunk.first + (live ? position : chunk.lo)) * p.v.stride[0], live);
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
    if (!chunk.holds(position)) continue;
    *reinterpret_cast<uint4*>(out + (chunk.first + position) * p.out.stride[0]) =
        *reinterpret_cast<const uint4*>(values + tile_offset(position, 8 * piece));
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

/// X^T = V^T - S Kd^T as operands.
template <bool kHalf>
__device__ void residual(const uint8_t* values, const StateLane& lane, const float (&predicted)[32],
                         uint32_t (&X)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t v[4];
    load_matrices_transposed(fragment_address(values, lane, k), v);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float low;
      float high;
      widen_pair<kHalf>(v[e], low, high);
      X[k][e] = pack_f16(low - predicted[8 * k + 2 * e], high - predicted[8 * k + 2 * e + 1]);
    }
  }
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

template <bool kHalf>
__device__ void state_chunk(const StateLane& lane, const Record& record, uint8_t* values,
                            float scale, float (&S)[64]) {
  const uint32_t Kd = shared_address(record.Kd);
  const uint32_t Qd = shared_address(record.Qd);
  const uint32_t Kt = shared_address(record.Kt);
  const uint32_t At = shared_address(record.At);
  uint32_t S16[8][4];
  pack_operands(S, S16);
  float x[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) x[i] = 0.0f;
  pin(x);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    wgmma_64(x, S16[k], tile_of_rows(Kd + (k >> 2) * kTile + (k & 3) * 32), k > 0);
  }
  wgmma_commit();
  wgmma_wait();
  pin(x);
  uint32_t X[4][4];
  residual<kHalf>(values, lane, x, X);
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
  put_out<kHalf>(values, lane, x, scale);
}

/// The chunks of one row; `turn` counts chunks of the block, by which the ring turns.
template <bool kHalf, int kGroups>
__device__ void state_row(const KdaDevice& p, const DeviceRow& row, int64_t n, int64_t j,
                          const StateLane& lane, StateShared<kGroups>& s, uint32_t& turn) {
  const Chunks chunks(row);
  const auto values = [&](uint32_t at) { return s.values[at % kStages][lane.group]; };
  float S[64];
  fetch_values(p, chunks, 0, j, lane, values(turn));
  fetch_values(p, chunks, 1, j, lane, values(turn + 1));
  load_state(p, lane, row.slot, j, row.fresh, S);
  for (int32_t chunk = 0; chunk < chunks.count(); ++chunk, ++turn) {
    const uint32_t at = turn % kStages;
    copy_wait_but<1>();
    lane.sync();
    // Each thread refills exactly what it stored the output from.
    fetch_values(p, chunks, chunk + 2, j, lane, values(turn + 2));
    barrier_wait(shared_address(&s.full[at]), turn / kStages & 1);
    state_chunk<kHalf>(lane, s.stage[at].record, values(turn), p.scale, S);
    barrier_arrive(shared_address(&s.empty[at]));
    lane.sync();
    store_out(p, chunks.at(chunk), j, lane, values(turn));
  }
  copy_wait_but<0>();
  store_state(p, lane, n, row.slot, j, S);
}

}  // namespace linestate::kda_sm90
