// The state half: a warpgroup holds 64 rows of S [V, K] as the accumulators of its products, thread
// (warp, g, t) rows 16 warp + g and + 8, channels 8 i + 2 t and + 1.
#pragma once

#include "ops/kda/prefill/kda_prefill_sm90.cuh"

namespace linestate::kda_sm90 {

struct StateLane {
  int half;    // warpgroup: rows 64 half .. + 63 of S
  int thread;  // of 128
  int warp;
  int g;
  int t;

  __device__ explicit StateLane(int thread_in) {
    thread_in = afresh(thread_in);
    half = thread_in / 128;
    thread = thread_in % 128;
    warp = thread / 32;
    g = thread % 32 / 4;
    t = thread % 4;
  }
  __device__ void sync() const { sync_some(2 + half, 128); }
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

/// Starts the copy of this warpgroup's half of v; positions outside the row become zero.
__device__ inline void fetch_values(const KdaDevice& p, const Chunks& chunks, int32_t chunk,
                                    int64_t j, const StateLane& lane, uint8_t* values) {
  const int piece = lane.thread % 8;
  const auto* v =
      static_cast<const uint16_t*>(p.v.data) + j * p.v.stride[1] + 64 * lane.half + 8 * piece;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int position = lane.thread / 8 + 16 * i;
    const int32_t place = kChunk * chunk + position;
    const bool live = chunks.holds(place);
    copy_16(shared_address(values + tile_offset(position, 8 * piece)),
            v + chunks.token(live ? place : chunks.lead) * p.v.stride[0], live);
  }
}

__device__ inline void store_out(const KdaDevice& p, const Chunks& chunks, int32_t chunk, int64_t j,
                                 const StateLane& lane, const uint8_t* values) {
  const int piece = lane.thread % 8;
  auto* out = static_cast<uint16_t*>(p.out.data) + j * p.out.stride[1] + 64 * lane.half + 8 * piece;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int position = lane.thread / 8 + 16 * i;
    const int32_t place = kChunk * chunk + position;
    if (!chunks.holds(place)) continue;
    *reinterpret_cast<uint4*>(out + chunks.token(place) * p.out.stride[0]) =
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
__device__ void state_chunk(const StateLane& lane, const Stage& stage, const float* gamma,
                            uint8_t* values, float scale, float (&S)[64]) {
  const uint32_t Kd = shared_address(stage.Kd);
  const uint32_t Qd = shared_address(stage.Qd);
  const uint32_t Kr = shared_address(stage.Kr);
  const uint32_t T = shared_address(stage.T);
  const uint32_t Aqk = shared_address(stage.Aqk);
  uint32_t S16[8][4];
  pack_operands(S, S16);
  float x[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) x[i] = 0.0f;
  pin(x);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    wgmma_64(x, S16[k], tile_of_rows(Kd + (k >> 2) * 8192 + (k & 3) * 32), k > 0);
  }
  wgmma_commit();
  wgmma_wait();
  pin(x);
  uint32_t R[4][4];
  residual<kHalf>(values, lane, x, R);
  pin(x);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_64(x, R[k], tile_of_rows(T + k * 32), k > 0);
  wgmma_commit();
  wgmma_wait();
  pin(x);
  pack_operands(x, R);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float2 decay = *reinterpret_cast<const float2*>(gamma + 8 * i + 2 * lane.t);
    S[4 * i] *= decay.x;
    S[4 * i + 1] *= decay.y;
    S[4 * i + 2] *= decay.x;
    S[4 * i + 3] *= decay.y;
  }
  pin(S);
  pin(x);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    wgmma_64(x, S16[k], tile_of_rows(Qd + (k >> 2) * 8192 + (k & 3) * 32), k > 0);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_64(x, R[k], tile_of_rows(Aqk + k * 32), true);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    wgmma_128_columns(S, R[k], tile_of_columns(Kr + k * 2048, 8192), true);
  }
  wgmma_commit();
  wgmma_wait();
  pin(S);
  pin(x);
  put_out<kHalf>(values, lane, x, scale);
}

template <bool kHalf>
__device__ void state_row(const KdaDevice& p, const DeviceRow& row, int64_t n, int64_t j,
                          int thread, Shared& s, uint32_t& turn) {
  const Chunks chunks(row);
  uint8_t* values = s.values[thread / 128];
  float S[64];
  fetch_values(p, chunks, 0, j, StateLane(thread), values);
  load_state(p, StateLane(thread), row.slot, j, row.fresh, S);
  for (int32_t chunk = 0; chunk < chunks.count(); ++chunk, ++turn) {
    const int at = static_cast<int>(turn % kStages);
    const StateLane lane(thread);
    copy_wait();
    lane.sync();
    barrier_wait(shared_address(&s.full[at]), turn / kStages & 1);
    state_chunk<kHalf>(lane, s.stage[at], s.gamma[at], values, p.scale, S);
    barrier_arrive(shared_address(&s.empty[at]));
    lane.sync();
    store_out(p, chunks, chunk, j, StateLane(thread), values);
    // Each thread refills exactly what it has just read.
    if (chunk + 1 < chunks.count())
      fetch_values(p, chunks, chunk + 1, j, StateLane(thread), values);
  }
  store_state(p, StateLane(thread), n, row.slot, j, S);
}

}  // namespace linestate::kda_sm90
