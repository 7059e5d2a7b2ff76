// One token on rows of the state, held in the registers of a warp: what decode, prefill, verify,
// replay and commit are made of. The same token on the same row gives the same bits in all of them.
//
// A row of S lies over kLanes neighbouring lanes, kQuads times four channels a lane: quad i of lane
// l holds channels (l + kLanes * i) * 4 and the three behind it. The 32 / kLanes groups of a warp
// hold kStateRows rows each. Lanes whose channels lie behind K hold zeros.
#pragma once

#include <cstdint>

#include "ops/kda/kda_device.cuh"

namespace linestate {

/// Rows of S that a group of lanes works on at once.
inline constexpr int kStateRows = 8;

template <int kLanesIn, int kQuadsIn>
struct KdaMap {
  static constexpr int kLanes = kLanesIn;
  static constexpr int kQuads = kQuadsIn;
  static constexpr int kElems = 4 * kQuads;
  static constexpr int kGroups = 32 / kLanes;
  static constexpr int kWarpRows = kGroups * kStateRows;  // rows of S a warp works on at once
  static constexpr int kChannels = kLanes * kElems;       // most K

  __device__ static int lane() { return lane_id() % kLanes; }
  __device__ static int group() { return lane_id() / kLanes; }
  __device__ static int channel(int quad) { return (lane() + kLanes * quad) * 4; }
};

/// Runs call.template operator()<Map>() with the narrowest map that holds K channels: K decides the
/// order of sums, the batch does not.
template <typename Call>
auto with_kda_map(int64_t K, const Call& call) {
  if (K <= 64) return call.template operator()<KdaMap<16, 1>>();
  if (K <= 128) return call.template operator()<KdaMap<32, 1>>();
  return call.template operator()<KdaMap<32, 2>>();
}

/// The lane's channels of one token.
template <typename Map>
struct KdaLaneToken {
  float alpha[Map::kElems];  // exp(g)
  float k[Map::kElems];      // k^
  float q[Map::kElems];      // scale * q^
  float kq;                  // k^ . (scale * q^)
  float beta;
  float k_inverse_norm;
};

template <typename Map>
__device__ float kda_lane_dot(const float (&a)[Map::kElems], const float (&b)[Map::kElems]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Map::kElems; ++i) sum = fmaf(a[i], b[i], sum);
  return sum_lanes<Map::kLanes>(sum);
}

/// The lane's channels of a vector that lies at `at`; zeros behind K.
template <typename Map, int kRank>
__device__ void load_kda_lanes(const DeviceView<kRank>& view, int64_t at, int K,
                               float (&out)[Map::kElems]) {
#pragma unroll
  for (int i = 0; i < Map::kQuads; ++i) {
    const int c = Map::channel(i);
    if (c < K) {
      load_quad(view, at + c * view.step(), out + 4 * i);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[4 * i + e] = 0.0f;
    }
  }
}

/// Makes a token of raw lanes: alpha holds the gate, k and q what the caller loaded.
template <typename Map>
__device__ void finish_kda_lanes(const KdaDevice& p, const KdaGateHead& head,
                                 const float (&bias)[Map::kElems], float beta,
                                 KdaLaneToken<Map>& token) {
#pragma unroll
  for (int i = 0; i < Map::kElems; ++i) {
    float& alpha = token.alpha[i];
    alpha = Map::channel(i / 4) < p.K ? kda_decay(head, alpha, bias[i]) : 0.0f;
  }
  token.k_inverse_norm = kda_inverse_norm<Map::kLanes>(token.k, p.qk_normalized);
  const float q_factor = p.scale * kda_inverse_norm<Map::kLanes>(token.q, p.qk_normalized);
#pragma unroll
  for (int i = 0; i < Map::kElems; ++i) {
    token.k[i] *= token.k_inverse_norm;
    token.q[i] *= q_factor;
  }
  token.kq = kda_lane_dot<Map>(token.k, token.q);
  token.beta = kda_beta(p.beta_form, beta);
}

/// Key and query of token t, raw.
template <typename Map>
__device__ void finish_kda_token(const KdaDevice& p, const KdaGateHead& head, int64_t j, float beta,
                                 KdaLaneToken<Map>& token) {
  float bias[Map::kElems] = {};
#pragma unroll
  for (int i = 0; i < Map::kQuads; ++i) {
    const int c = Map::channel(i);
    if (c < p.K && p.dt_bias.data != nullptr) {
      load_quad(p.dt_bias, p.dt_bias.offset(j, c), bias + 4 * i);
    }
  }
  finish_kda_lanes<Map>(p, head, bias, beta, token);
}

/// Token t for value head j; each group of lanes may ask for its own.
template <typename Map>
__device__ void load_kda_token(const KdaDevice& p, const KdaGateHead& head, int64_t t, int64_t j,
                               KdaLaneToken<Map>& token) {
  const int64_t h = j / (p.HV / p.H);
  load_kda_lanes<Map>(p.gate, p.gate.offset(t, j), p.K, token.alpha);
  load_kda_lanes<Map>(p.k, p.k.offset(t, h), p.K, token.k);
  load_kda_lanes<Map>(p.q, p.q.offset(t, h), p.K, token.q);
  finish_kda_token<Map>(p, head, j, load_at(p.beta, t, j), token);
}

/// The lane's part of kStateRows rows of S.
template <typename Map>
struct KdaLaneRows {
  float s[kStateRows][Map::kElems];
};

/// First row of S of the lane's group, when the warp's rows begin at `first`.
template <typename Map>
__device__ int64_t kda_group_row(int64_t first) {
  return first + Map::group() * kStateRows;
}

/// Rows of (slot, j) of a state view; zeros behind V, and for a fresh row whatever the slot holds.
/// Every load is issued before any is used.
template <typename Map>
__device__ void load_kda_rows(const KdaDevice& p, int64_t slot, int64_t j, int64_t first,
                              bool fresh, KdaLaneRows<Map>& rows) {
  const int64_t row = kda_group_row<Map>(first);
  const int64_t base = p.state.offset(slot, j, row);
  if (p.state.packed && !fresh) {
    const bool narrow = p.state.dtype != DType::kF32;
    uint4 bits[kStateRows][Map::kQuads];
#pragma unroll
    for (int r = 0; r < kStateRows; ++r) {
#pragma unroll
      for (int i = 0; i < Map::kQuads; ++i) {
        const int c = Map::channel(i);
        bits[r][i] = make_uint4(0, 0, 0, 0);
        if (row + r < p.V && c < p.K) {
          bits[r][i] = load_quad_bits(p.state.data, narrow, base + r * p.state.stride[2] + c);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kStateRows; ++r) {
#pragma unroll
      for (int i = 0; i < Map::kQuads; ++i) {
        widen_quad(bits[r][i], p.state.dtype, rows.s[r] + 4 * i);
      }
    }
    return;
  }
#pragma unroll
  for (int r = 0; r < kStateRows; ++r) {
    load_kda_lanes<Map>(p.state, base + r * p.state.stride[2], fresh || row + r >= p.V ? 0 : p.K,
                        rows.s[r]);
  }
}

/// False when a finite value became infinite.
template <typename Map>
__device__ bool store_kda_rows(const KdaDevice& p, int64_t slot, int64_t j, int64_t first,
                               const KdaLaneRows<Map>& rows) {
  const int64_t row = kda_group_row<Map>(first);
  const int64_t base = p.state.offset(slot, j, row);
  bool fits = true;
#pragma unroll
  for (int r = 0; r < kStateRows; ++r) {
#pragma unroll
    for (int i = 0; i < Map::kQuads; ++i) {
      const int c = Map::channel(i);
      if (row + r >= p.V || c >= p.K) continue;
      fits &=
          store_quad(p.state, base + r * p.state.stride[2] + c * p.state.step(), rows.s[r] + 4 * i);
    }
  }
  return fits;
}

/// store_kda_rows, and reports an overflow for row n of the call.
template <typename Map>
__device__ void keep_kda_rows(const KdaDevice& p, int64_t n, int64_t slot, int64_t j, int64_t first,
                              const KdaLaneRows<Map>& rows) {
  if (!store_kda_rows<Map>(p, slot, j, first, rows)) {
    raise_overflow(p.status, n, slot, p.layer);
  }
}

/// Which of the warp's rows the lane speaks for: the lower half of each group knows u, the upper
/// half o, each value twice or more.
template <typename Map>
struct KdaLaneRole {
  static constexpr int kShare = Map::kLanes / (2 * kStateRows);  // lanes that know one value
  __device__ static int row() { return Map::lane() / kShare % kStateRows; }
  __device__ static bool upper() { return Map::lane() >= Map::kLanes / 2; }
  __device__ static bool speaks() { return Map::lane() % kShare == 0; }
};

/// S <- S diag(alpha) + u k^T with known u; `u` as the lane that speaks for a row holds it.
template <typename Map>
__device__ void update_kda_rows(const float (&alpha)[Map::kElems], const float (&k)[Map::kElems],
                                float u, KdaLaneRows<Map>& rows) {
#pragma unroll
  for (int r = 0; r < kStateRows; ++r) {
    const int source = Map::group() * Map::kLanes + r * KdaLaneRole<Map>::kShare;
    const float u_r = __shfl_sync(kAllLanes, u, source);
#pragma unroll
    for (int i = 0; i < Map::kElems; ++i) {
      rows.s[r][i] = fmaf(u_r, k[i], rows.s[r][i] * alpha[i]);
    }
  }
}

/// S alpha k^ (lower half of a group) and S alpha q^ (upper half) of the row the lane speaks for.
template <typename Map>
__device__ float predict_kda_rows(const KdaLaneToken<Map>& token, const KdaLaneRows<Map>& rows) {
  float sums[2 * kStateRows];
#pragma unroll
  for (int r = 0; r < kStateRows; ++r) {
    float p = 0.0f;
    float o = 0.0f;
#pragma unroll
    for (int i = 0; i < Map::kElems; ++i) {
      const float decayed = rows.s[r][i] * token.alpha[i];
      p = fmaf(decayed, token.k[i], p);
      o = fmaf(decayed, token.q[i], o);
    }
    sums[r] = p;
    sums[kStateRows + r] = o;
  }
  return transpose_sum<2 * kStateRows, Map::kLanes>(sums);
}

struct KdaLaneResult {
  float u;  // of the row the lane speaks for; lower half of a group
  float o;  // upper half
};

/// One token: `v` is the value of the row the lane speaks for.
///   u = beta (v - S alpha k^) ;  o = scale S alpha q^ + u (scale k^ . q^) ;  S <- S alpha + u k^T
/// One round of sums instead of two, because o does not wait for the new state.
template <typename Map>
__device__ KdaLaneResult step_kda_rows(const KdaLaneToken<Map>& token, float v,
                                       KdaLaneRows<Map>& rows) {
  const float sum = predict_kda_rows<Map>(token, rows);
  KdaLaneResult result;
  result.u = token.beta * (v - sum);
  const float u_below = __shfl_xor_sync(kAllLanes, result.u, Map::kLanes / 2);
  result.o = fmaf(u_below, token.kq, sum);
  update_kda_rows<Map>(token.alpha, token.k, result.u, rows);
  return result;
}

/// Zero output of token t for the warp's rows.
template <typename Map>
__device__ void clear_kda_out(const KdaDevice& p, int64_t t, int64_t j, int64_t first) {
  const int64_t row = first + lane_id();
  if (lane_id() < Map::kWarpRows && row < p.V) store_at(p.out, 0.0f, t, j, row);
}

/// A fresh row without tokens: the warp's rows of its state become zero.
template <typename Map>
__device__ void clear_kda_rows(const KdaDevice& p, int64_t slot, int64_t j, int64_t first) {
  KdaLaneRows<Map> zeros = {};
  store_kda_rows<Map>(p, slot, j, first, zeros);
}

/// The row's o of token t, by the lanes that speak for it.
template <typename Map>
__device__ void store_kda_out(const KdaDevice& p, int64_t t, int64_t j, int64_t first, float o) {
  using Role = KdaLaneRole<Map>;
  const int64_t row = kda_group_row<Map>(first) + Role::row();
  if (Role::upper() && Role::speaks() && row < p.V) store_at(p.out, o, t, j, row);
}

/// v of token t for the row the lane speaks for; 0 behind V.
template <typename Map>
__device__ float load_kda_value(const KdaDevice& p, int64_t t, int64_t j, int64_t first) {
  const int64_t row = kda_group_row<Map>(first) + KdaLaneRole<Map>::row();
  return row < p.V ? load_at(p.v, t, j, row) : 0.0f;
}

}  // namespace linestate
