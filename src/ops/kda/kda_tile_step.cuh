// One token on a tile of the state: rows of one head that a block fetched into shared memory in the
// background, while one of its warps made the token for all. What a tile costs in registers is
// what kda_lane_step.cuh costs; the bits are those of kda_lane_step.cuh.
#pragma once

#include <cstdint>

#include "cuda/async_copy.cuh"
#include "cuda/fast_divider.h"
#include "ops/kda/kda_lane_step.cuh"

namespace linestate {

/// The tile's only width: K = 128, a row of S over the 32 lanes of a warp.
using KdaTileMap = KdaMap<32, 1>;
inline constexpr int kKdaTileWidth = KdaTileMap::kChannels;

/// A token as it lies in memory, four channels a lane.
struct KdaTokenBits {
  uint4 gate, k, q;
  float4 bias;
  uint32_t beta;
  float A_log;
};

__device__ inline KdaTokenBits load_kda_token_bits(const KdaDevice& p, int64_t t, int64_t j,
                                                   int64_t h) {
  const int c = KdaTileMap::channel(0);
  const bool narrow = p.q.dtype != DType::kF32;
  KdaTokenBits bits;
  bits.gate = load_quad_bits(p.gate.data, p.gate.dtype != DType::kF32, p.gate.offset(t, j, c));
  bits.k = load_quad_bits(p.k.data, narrow, p.k.offset(t, h, c));
  bits.q = load_quad_bits(p.q.data, narrow, p.q.offset(t, h, c));
  bits.bias = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  bits.A_log = 0.0f;
  if (p.dt_bias.data != nullptr) {
    const auto* bias = static_cast<const float*>(p.dt_bias.data);
    bits.bias = *reinterpret_cast<const float4*>(bias + p.dt_bias.offset(j, c));
    bits.A_log = load_at(p.A_log, j);
  }
  bits.beta = load_bits(p.beta.data, p.beta.dtype, p.beta.offset(t, j));
  return bits;
}

/// What kda_gate_head(p, j) gives, of what is loaded.
__device__ inline KdaGateHead kda_gate_head(const KdaDevice& p, const KdaTokenBits& bits) {
  return {p.gate_form, p.gate_form == KdaGate::kActivated ? 1.0f : expf(bits.A_log), p.lower_bound};
}

__device__ inline void finish_kda_token_bits(const KdaDevice& p, const KdaTokenBits& bits,
                                             KdaLaneToken<KdaTileMap>& token) {
  widen_quad(bits.gate, p.gate.dtype, token.alpha);
  widen_quad(bits.k, p.q.dtype, token.k);
  widen_quad(bits.q, p.q.dtype, token.q);
  const float bias[4] = {bits.bias.x, bits.bias.y, bits.bias.z, bits.bias.w};
  finish_kda_lanes<KdaTileMap>(p, kda_gate_head(p, bits), bias, widen_bits(bits.beta, p.beta.dtype),
                               token);
}

/// A token for all warps of a block.
struct KdaSharedToken {
  float4 alpha[32], k[32], q[32];
  float kq, beta;
};

__device__ inline void share_kda_token(const KdaLaneToken<KdaTileMap>& token, KdaSharedToken& to) {
  const int lane = lane_id();
  to.alpha[lane] = make_float4(token.alpha[0], token.alpha[1], token.alpha[2], token.alpha[3]);
  to.k[lane] = make_float4(token.k[0], token.k[1], token.k[2], token.k[3]);
  to.q[lane] = make_float4(token.q[0], token.q[1], token.q[2], token.q[3]);
  if (lane == 0) {
    to.kq = token.kq;
    to.beta = token.beta;
  }
}

__device__ inline void unpack_float4(float4 from, float (&to)[4]) {
  to[0] = from.x;
  to[1] = from.y;
  to[2] = from.z;
  to[3] = from.w;
}

__device__ inline void read_kda_token(const KdaSharedToken& from, KdaLaneToken<KdaTileMap>& token) {
  const int lane = lane_id();
  unpack_float4(from.alpha[lane], token.alpha);
  unpack_float4(from.k[lane], token.k);
  unpack_float4(from.q[lane], token.q);
  token.kq = from.kq;
  token.beta = from.beta;
}

/// Bytes of one row of S; kNarrow = a 16-bit state.
template <bool kNarrow>
inline constexpr int kKdaTileRowBytes = kKdaTileWidth*(kNarrow ? 2 : 4);

/// The lane's part of kStateRows rows that lie at `tile`.
template <bool kNarrow>
__device__ void read_kda_tile(const uint8_t* tile, DType dtype, KdaLaneRows<KdaTileMap>& rows) {
#pragma unroll
  for (int r = 0; r < kStateRows; ++r) {
    const uint8_t* at = tile + r * kKdaTileRowBytes<kNarrow>;
    if constexpr (kNarrow) {
      const uint2 bits = reinterpret_cast<const uint2*>(at)[lane_id()];
      widen_quad(make_uint4(bits.x, bits.y, 0, 0), dtype, rows.s[r]);
    } else {
      widen_quad(reinterpret_cast<const uint4*>(at)[lane_id()], DType::kF32, rows.s[r]);
    }
  }
}

/// kStateRows contiguous rows of a packed state, the first at element `at`. False when a finite
/// value became infinite.
template <bool kNarrow>
__device__ bool store_kda_tile(const DeviceView<4>& state, int64_t at,
                               const KdaLaneRows<KdaTileMap>& rows) {
  bool fits = true;
  at += KdaTileMap::channel(0);
#pragma unroll
  for (int r = 0; r < kStateRows; ++r) {
    if constexpr (kNarrow) {
      fits &= store_narrow_quad(state.data, state.dtype, at + r * kKdaTileWidth, rows.s[r]);
    } else {
      auto* to = static_cast<float*>(state.data) + at + r * kKdaTileWidth;
      *reinterpret_cast<float4*>(to) =
          make_float4(rows.s[r][0], rows.s[r][1], rows.s[r][2], rows.s[r][3]);
    }
  }
  return fits;
}

/// True when the parameters can be served from tiles: what the loads and stores above rely on.
/// Depends on the described problem alone.
inline bool kda_tiles_fit(const KdaParams& p) {
  const ConstTensorView state = p.state;
  const int64_t each = 16 / dtype_bytes(state.dtype);
  bool fits = p.q.shape[2] == kKdaTileWidth && state.stride[3] == 1 &&
              state.stride[2] == kKdaTileWidth && state.stride[1] % each == 0 &&
              state.stride[0] % each == 0 && reinterpret_cast<uintptr_t>(state.data) % 16 == 0;
  for (const ConstTensorView& x : {p.q, p.k, p.gate}) fits = fits && device_view<3>(x).packed;
  if (p.gate_form != KdaGate::kActivated) fits = fits && device_view<2>(p.dt_bias).packed;
  return fits;
}

}  // namespace linestate
