// The factor half: gates, decays, products of keys with keys and queries, and the triangular
// inverse of one chunk.
//
// Warp w works on tokens 16 (w / 2) .. + 15 and channels 64 (w % 2) .. + 63. Lane (g, t) = (lane /
// 4, lane % 4) holds tokens g and g + 8 of its sixteen: the layout in which tensor cores take
// operands, so pairs inside 16 tokens never pass through shared memory. A pair (i, j) belongs to
// the level h (1, 2, 4, .. 32) at which i lies in the later and j in the earlier of two
// neighbouring blocks of h tokens; q^ and k^ are decayed to the border between the two, so no
// exponent is positive.
#pragma once

#include "ops/kda/prefill/kda_prefill_sm90_solve.cuh"

namespace linestate::kda_sm90 {

constexpr float kLog2E = 1.4426950408889634f;

/// Constants of one head's gate, in base 2.
struct Gate {
  KdaGate form;
  float exp_A;
  float bound;  // lower_bound * log2(e)
};

/// alpha = exp(g) of eight channels; x is the gate tensor plus the bias. The form is asked once, so
/// that the eight chains of special functions overlap.
__device__ inline void decay_8(const Gate& gate, float (&x)[8]) {
  if (gate.form == KdaGate::kBounded) {
    const float slope = -gate.exp_A * kLog2E;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      x[e] = exp2_fast(gate.bound * reciprocal_fast(1.0f + exp2_fast(slope * x[e])));
    }
  } else if (gate.form == KdaGate::kActivated) {
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = exp2_fast(kLog2E * x[e]);
  } else {
    const float slope = -gate.exp_A * kLog2E;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float e = exp2_fast(-kLog2E * fabsf(x[i]));
      const float series = e * (1.0f + e * (-0.5f + e * (1.0f / 3 + e * (-0.25f + e * 0.2f))));
      const float logarithm = log2_fast(1.0f + e) * 0.6931471805599453f;
      x[i] = exp2_fast(slope * (fmaxf(x[i], 0.0f) + (e < 0.0625f ? series : logarithm)));
    }
  }
}

template <bool kHalf, bool kGateF32>
struct Inputs {
  static constexpr int kGateBytes = kGateF32 ? 4 : 2;
  const KdaDevice& p;
  const uint16_t* q;  // of the key head
  const uint16_t* k;
  const char* gate;  // of the value head

  __device__ Inputs(const KdaDevice& params, int64_t j) : p(params) {
    const int64_t key_head = j / (p.HV / p.H);
    q = static_cast<const uint16_t*>(p.q.data) + key_head * p.q.stride[1];
    k = static_cast<const uint16_t*>(p.k.data) + key_head * p.k.stride[1];
    gate = static_cast<const char*>(p.gate.data) + j * p.gate.stride[1] * kGateBytes;
  }
  __device__ const uint16_t* q_at(int64_t token) const { return q + token * p.q.stride[0]; }
  __device__ const uint16_t* k_at(int64_t token) const { return k + token * p.k.stride[0]; }
  __device__ const char* gate_at(int64_t token) const {
    return gate + token * p.gate.stride[0] * kGateBytes;
  }

  __device__ static uint4 load(const uint16_t* from, bool live, float (&x)[8]) {
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (live) bits = __ldg(reinterpret_cast<const uint4*>(from));
    widen_8<kHalf>(bits, x);
    return bits;
  }
  __device__ void load_gate(int64_t token, int channel, bool live, float (&x)[8]) const {
    if constexpr (kGateF32) {
      float4 low = make_float4(0, 0, 0, 0);
      float4 high = low;
      if (live) {
        const auto* from = reinterpret_cast<const float4*>(gate_at(token)) + channel / 4;
        low = __ldg(from);
        high = __ldg(from + 1);
      }
      x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
      x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    } else {
      load(reinterpret_cast<const uint16_t*>(gate_at(token)) + channel, live, x);
    }
  }
  /// Asks for one position of the next chunk; four threads a position.
  __device__ void prefetch(int64_t token, int part) const {
    const char* from = nullptr;
    if (part == 0) from = reinterpret_cast<const char*>(q_at(token));
    if (part == 1) from = reinterpret_cast<const char*>(k_at(token));
    if (part == 2) from = gate_at(token);
    if (part == 3 && kGateF32) from = gate_at(token) + 256;
    if (from == nullptr) return;
    prefetch_l2(from);
    prefetch_l2(from + 128);
  }
};

__device__ inline void take_4(const float* from, float (&x)[4]) {
  const float4 quad = *reinterpret_cast<const float4*>(from);
  x[0] = quad.x, x[1] = quad.y, x[2] = quad.z, x[3] = quad.w;
}

/// Columns channel and behind of row `row`; tiles of `rows` rows side by side.
__device__ inline uint8_t* tile_at(uint8_t* tiles, int rows, int row, int channel) {
  return tiles + (channel >> 6) * rows * 128 + tile_offset(row, channel & 63);
}
/// Four f16 values in columns channel .. + 3 of row `row`; tiles of `rows` rows side by side.
__device__ inline void put_4(uint8_t* tiles, int rows, int row, int channel, uint32_t low,
                             uint32_t high) {
  *reinterpret_cast<uint2*>(tile_at(tiles, rows, row, channel)) = make_uint2(low, high);
}
/// Eight channels of alpha: products over sixteen tokens, and where the lane finds them again.
__device__ inline void keep_alpha(const float (&alpha)[2][8], int d, const FactorLane& lane,
                                  Shared& s, float (&kept)[4]) {
  const int channel = lane.channel(d);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      total[e] = alpha[0][4 * half + e] * alpha[1][4 * half + e];
#pragma unroll
      for (int mask = 4; mask <= 16; mask *= 2) {
        total[e] *= __shfl_xor_sync(kAllLanes, total[e], mask);
      }
    }
    if (lane.g == 0) {
      *reinterpret_cast<float4*>(&s.total[lane.r][channel + 4 * half]) =
          make_float4(total[0], total[1], total[2], total[3]);
    }
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const float* x = &alpha[b][4 * half];
      if (d == 1 && half == 1 && b == 1) {
#pragma unroll
        for (int e = 0; e < 4; ++e) kept[e] = x[e];
      } else {
        s.alpha[(2 * d + half) * 2 + b][lane.thread] = make_float4(x[0], x[1], x[2], x[3]);
      }
    }
  }
}

/// Gates and norms: alpha of the lane's 32 elements (the last four stay in registers), the
/// products over 16 tokens, and sums of squares. The raw q and k wait where the lane will put what
/// it makes of them.
template <typename In>
__device__ void read_chunk(const In& in, const Chunks& chunks, int32_t chunk, const Gate& gate,
                           int thread, Shared& s, Stage& stage, float (&kept)[4]) {
  const FactorLane lane(thread);
  float square[2][2] = {};
#pragma unroll
  for (int d = 0; d < 2; ++d) {
    const int channel = lane.channel(d);
    float alpha[2][8];
    float bias[2][4];
    take_4(&s.dt_bias[channel], bias[0]);
    take_4(&s.dt_bias[channel + 4], bias[1]);
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int32_t place = kChunk * chunk + lane.token(b);
      const int64_t token = chunks.token(place);
      const bool live = chunks.holds(place);
      float x[8];
      *reinterpret_cast<uint4*>(tile_at(stage.Qd, 64, lane.token(b), channel)) =
          In::load(in.q_at(token) + channel, live, x);
#pragma unroll
      for (int e = 0; e < 8; ++e) square[0][b] = fmaf(x[e], x[e], square[0][b]);
      *reinterpret_cast<uint4*>(tile_at(stage.Kd, 64, lane.token(b), channel)) =
          In::load(in.k_at(token) + channel, live, x);
#pragma unroll
      for (int e = 0; e < 8; ++e) square[1][b] = fmaf(x[e], x[e], square[1][b]);
      in.load_gate(token, channel, live, x);
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] += bias[e / 4][e % 4];
      decay_8(gate, x);
#pragma unroll
      for (int e = 0; e < 8; ++e) alpha[b][e] = live ? x[e] : 1.0f;
    }
    keep_alpha(alpha, d, lane, s, kept);
  }
#pragma unroll
  for (int b = 0; b < 2; ++b) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const float sum = sum_lanes<4>(square[which][b]);
      if (lane.t == 0) s.norm[lane.c][which][lane.token(b)] = sum;
    }
  }
}

/// Sums of products inside 16 tokens, by level: rows 0-7 of each are queries, 8-15 keys.
struct Inner {
  float pair[3][2][4] = {};  // levels 1, 2, 4 of both blocks of eight
  float eight[4] = {};       // level 8
  float self[2] = {};        // q^_i . k^_i
};

/// Decays of four channels of the lane's two tokens, inside a growing block.
struct Decays {
  float before[2][4];  // from the block's begin up to the token
  float behind[2][4];  // behind the token to the block's end
  float total[2][4];
};

/// One level inside eight tokens: products, then blocks of h become blocks of 2 h.
template <int kLevel>
__device__ void inner_level(const float (&q)[2][4], const float (&k)[2][4], int g, Decays& x,
                            Inner& sums) {
  constexpr int h = 1 << kLevel;
  const bool later = (g & h) != 0;
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    uint32_t q16[2];
    uint32_t k16[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float low = later ? x.before[b][2 * e] : x.behind[b][2 * e];
      const float high = later ? x.before[b][2 * e + 1] : x.behind[b][2 * e + 1];
      q16[e] = pack_f16(q[b][2 * e] * low, q[b][2 * e + 1] * high);
      k16[e] = pack_f16(k[b][2 * e] * low, k[b][2 * e + 1] * high);
    }
    mma_16816(sums.pair[kLevel][b], q16[0], k16[0], q16[1], k16[1], k16[0], k16[1]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float other = __shfl_xor_sync(kAllLanes, x.total[b][e], 4 * h);
      x.before[b][e] *= later ? other : 1.0f;
      x.behind[b][e] *= later ? 1.0f : other;
      x.total[b][e] *= other;
    }
  }
}

/// Level 8: token g of the first eight is the earlier, token g of the second the later.
__device__ inline void level_eight(const float (&q)[2][4], const float (&k)[2][4], Decays& x,
                                   Inner& sums) {
  uint32_t q16[2];
  uint32_t k16[2];
  uint32_t early[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int a = 2 * e;
    q16[e] = pack_f16(q[1][a] * x.before[1][a], q[1][a + 1] * x.before[1][a + 1]);
    k16[e] = pack_f16(k[1][a] * x.before[1][a], k[1][a + 1] * x.before[1][a + 1]);
    early[e] = pack_f16(k[0][a] * x.behind[0][a], k[0][a + 1] * x.behind[0][a + 1]);
  }
  mma_16816(sums.eight, q16[0], k16[0], q16[1], k16[1], early[0], early[1]);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    x.before[1][e] *= x.total[0][e];
    x.behind[0][e] *= x.total[1][e];
  }
}

__device__ inline void put_product(uint8_t* tiles, int rows, int row, int channel,
                                   const float (&x)[4], const float (&y)[4]) {
  put_4(tiles, rows, row, channel, pack_f16(x[0] * y[0], x[1] * y[1]),
        pack_f16(x[2] * y[2], x[3] * y[3]));
}

/// Operands between blocks of 16 and of 32, and of the state, for four channels.
__device__ inline void put_outer(const FactorLane& lane, int channel, const float (&q)[2][4],
                                 const float (&k)[2][4], Decays& x, Shared& s, Stage& stage) {
  const int r = lane.r;
  float near[4];
  float far[4];
  float other[4];
  take_4(&s.total[r ^ 1][channel], near);
  take_4(&s.total[r ^ 2][channel], far);
  take_4(&s.total[r ^ 3][channel], other);
#pragma unroll
  for (int e = 0; e < 4; ++e) far[e] *= other[e];
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const int row = 8 * b + lane.g;
    if ((r & 1) != 0) {
      put_product(s.level16.upper, 64, 16 * (r - 1) + row, channel, q[b], x.before[b]);
      put_product(s.level16.upper, 64, 16 * r + row, channel, k[b], x.before[b]);
    } else {
      put_product(s.level16.lower, 32, 8 * r + row, channel, k[b], x.behind[b]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if ((r & 1) != 0) {
        x.before[b][e] *= near[e];
      } else {
        x.behind[b][e] *= near[e];
      }
    }
    if (r >= 2) {
      put_product(s.level32.upper, 64, 16 * (r - 2) + row, channel, q[b], x.before[b]);
      put_product(s.level32.upper, 64, 16 * r + row, channel, k[b], x.before[b]);
    } else {
      put_product(s.level32.lower, 32, 16 * r + row, channel, k[b], x.behind[b]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (r >= 2) {
        x.before[b][e] *= far[e];
      } else {
        x.behind[b][e] *= far[e];
      }
    }
    put_product(stage.Kd, 64, lane.token(b), channel, k[b], x.before[b]);
    put_product(stage.Qd, 64, lane.token(b), channel, q[b], x.before[b]);
    put_product(stage.Kr, 64, lane.token(b), channel, k[b], x.behind[b]);
  }
}

/// Everything that is a product of q^, k^ and decays, four channels a step.
template <bool kHalf>
__device__ void make_operands(bool normalized, int thread, const float (&kept)[4], Shared& s,
                              Stage& stage, float* gamma, Inner& sums) {
  float inverse[2][2];
#pragma unroll
  for (int b = 0; b < 2; ++b) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const int token = FactorLane(thread).token(b);
      const float sum = s.norm[0][which][token] + s.norm[1][which][token];
      inverse[which][b] = normalized ? 1.0f : rsqrtf(sum + 1e-6f);
    }
  }
  if (thread < kWidth) {
    gamma[thread] =
        s.total[0][thread] * s.total[1][thread] * (s.total[2][thread] * s.total[3][thread]);
  }
#pragma unroll 2
  for (int step = 0; step < 4; ++step) {
    const FactorLane lane(thread);
    const int channel = lane.channel(step / 2) + step % 2 * 4;
    float q[2][4];
    float k[2][4];
    Decays x;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int token = lane.token(b);
      const uint2 q16 = *reinterpret_cast<const uint2*>(tile_at(stage.Qd, 64, token, channel));
      const uint2 k16 = *reinterpret_cast<const uint2*>(tile_at(stage.Kd, 64, token, channel));
      widen_pair<kHalf>(q16.x, q[b][0], q[b][1]);
      widen_pair<kHalf>(q16.y, q[b][2], q[b][3]);
      widen_pair<kHalf>(k16.x, k[b][0], k[b][1]);
      widen_pair<kHalf>(k16.y, k[b][2], k[b][3]);
      float4 alpha = make_float4(kept[0], kept[1], kept[2], kept[3]);
      if (b == 0 || step < 3) alpha = s.alpha[step * 2 + b][lane.thread];
      x.before[b][0] = alpha.x, x.before[b][1] = alpha.y;
      x.before[b][2] = alpha.z, x.before[b][3] = alpha.w;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x.behind[b][e] = 1.0f;
        x.total[b][e] = x.before[b][e];
        q[b][e] *= inverse[0][b];
        k[b][e] *= inverse[1][b];
        sums.self[b] = fmaf(q[b][e], k[b][e], sums.self[b]);
      }
    }
    inner_level<0>(q, k, lane.g, x, sums);
    inner_level<1>(q, k, lane.g, x, sums);
    inner_level<2>(q, k, lane.g, x, sums);
    level_eight(q, k, x, sums);
    put_outer(lane, channel, q, k, x, s, stage);
  }
}

/// Products between blocks of 32 (first warpgroup) or of 16 (second), to Aqk and A.
__device__ inline void outer_products(int of, Shared& s, Stage& stage) {
  const FactorLane lane(of);
  const bool wide = lane.thread < 128;
  Level& level = wide ? s.level32 : s.level16;
  const uint32_t upper = shared_address(level.upper);
  const uint32_t lower = shared_address(level.lower);
  float d[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) d[i] = 0.0f;
  pin(d);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    wgmma_32_tiles(d, tile_of_rows(upper + (k >> 2) * 8192 + (k & 3) * 32),
                   tile_of_rows(lower + (k >> 2) * 4096 + (k & 3) * 32), true);
  }
  wgmma_commit();
  wgmma_wait();
  pin(d);
  // Rows of the product: queries then keys of the later block; each warp has sixteen of one kind.
  const int warp = lane.thread / 32 % 4;
  const bool keys = wide ? warp >= 2 : (warp & 1) != 0;
  const int pair = wide ? 0 : warp / 2;
  const int late = wide ? 16 * (warp & 1) : 0;
  const int begin = wide ? 32 : 32 * pair + 16;
  const int shift = wide ? 0 : 4 * pair;  // the pair's columns, in groups of two accumulators
  uint16_t* A = wide ? &s.solve.A32[0][0] : &s.solve.A16[pair][0][0];
  const int pitch = wide ? 40 : 24;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = late + lane.g + 8 * e;
    const float factor = keys ? s.beta[begin + row] : 1.0f;
    auto* to = reinterpret_cast<uint8_t*>(A + row * pitch);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool mine = wide || i / 2 == pair;
      if (!mine) continue;
      const int column = 8 * i + 2 * lane.t - 4 * shift;
      uint8_t* at =
          keys ? to + 2 * column : stage.Aqk + tile_offset(begin + row, 32 * pair + column);
      *reinterpret_cast<uint32_t*>(at) =
          pack_f16(factor * d[4 * i + 2 * e], factor * d[4 * i + 2 * e + 1]);
    }
  }
}

__device__ inline void keep_inner(const FactorLane& lane, const Inner& sums, Solve& solve) {
  const int thread = 32 * lane.r + lane.thread % 32;
#pragma unroll
  for (int i = 0; i < 24; ++i) solve.exchange[i][thread] = sums.pair[i / 8][i / 4 % 2][i % 4];
#pragma unroll
  for (int i = 0; i < 4; ++i) solve.exchange[24 + i][thread] = sums.eight[i];
#pragma unroll
  for (int i = 0; i < 2; ++i) solve.exchange[28 + i][thread] = sums.self[i];
}

/// Adds the other half of the channels and spreads the sums over Aqk and A.
__device__ inline void put_inner(int of, Inner& sums, Shared& s, Stage& stage) {
  const FactorLane lane(of);
  const int thread = 32 * lane.r + lane.thread % 32;
  const auto& exchange = s.solve.exchange;
#pragma unroll
  for (int i = 0; i < 24; ++i) sums.pair[i / 8][i / 4 % 2][i % 4] += exchange[i][thread];
  auto& A = s.solve.A[lane.r];
  const int first = 16 * lane.r;
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const float self = sum_lanes<4>(sums.self[b] + exchange[28 + b][thread]);
    const float beta = s.beta[lane.token(b)];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = lane.g;
      const int j = 2 * lane.t + e;
      const int apart = i ^ j;
      float q = apart >= 4   ? sums.pair[2][b][e]
                : apart >= 2 ? sums.pair[1][b][e]
                : apart == 1 ? sums.pair[0][b][e]
                             : self;
      float k = apart >= 4   ? sums.pair[2][b][2 + e]
                : apart >= 2 ? sums.pair[1][b][2 + e]
                             : sums.pair[0][b][2 + e];
      if (j > i) q = 0.0f;
      if (j >= i) k = 0.0f;
      put_1(stage.Aqk, first + 8 * b + i, first + 8 * b + j, q);
      A[8 * b + i][8 * b + j] = beta * k;
    }
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int j = 2 * lane.t + e;
    const float q = sums.eight[e] + exchange[24 + e][thread];
    const float k = sums.eight[2 + e] + exchange[26 + e][thread];
    put_1(stage.Aqk, first + 8 + lane.g, first + j, q);
    A[8 + lane.g][j] = s.beta[first + 8 + lane.g] * k;
  }
}

template <bool kHalf, bool kGateF32>
__device__ void factor_row(const KdaDevice& p, const DeviceRow& row, int64_t j, int thread,
                           Shared& s, uint32_t& turn) {
  const Chunks chunks(row);
  const Inputs<kHalf, kGateF32> in(p, j);
  const bool activated = p.gate_form == KdaGate::kActivated;
  const Gate gate{p.gate_form, activated ? 1.0f : expf(load_at(p.A_log, j)),
                  p.lower_bound * kLog2E};
  if (thread < kWidth) s.dt_bias[thread] = activated ? 0.0f : load_at(p.dt_bias, j, thread);
  sync_factor();
  for (int32_t chunk = 0; chunk < chunks.count(); ++chunk, ++turn) {
    Stage& stage = s.stage[turn % kStages];
    const int32_t next = kChunk * (chunk + 1) + thread / 4;
    if (chunks.holds(next)) in.prefetch(chunks.token(next), thread % 4);
    if (thread < kChunk) {
      const int32_t place = kChunk * chunk + thread;
      float beta = 0.0f;
      if (chunks.holds(place)) {
        beta = kda_beta(p.beta_form, load_at(p.beta, chunks.token(place), j));
      }
      s.beta[thread] = beta;
    }
    float kept[4];
    barrier_wait(shared_address(&s.empty[turn % kStages]), (turn / kStages & 1) ^ 1);
    read_chunk(in, chunks, chunk, gate, thread, s, stage, kept);
    sync_factor();
    Inner sums;
    make_operands<kHalf>(p.qk_normalized, thread, kept, s, stage, s.gamma[turn % kStages], sums);
    fence_tiles();
    sync_factor();
    const bool second = FactorLane(thread).c == 1;
    if (second) keep_inner(FactorLane(thread), sums, s.solve);
    outer_products(thread, s, stage);
    sync_factor();
    if (!second) put_inner(thread, sums, s, stage);
    sync_factor();
    invert(thread, s, stage);
    fence_tiles();
    barrier_arrive(shared_address(&s.full[turn % kStages]));
    sync_factor();
  }
}

}  // namespace linestate::kda_sm90
