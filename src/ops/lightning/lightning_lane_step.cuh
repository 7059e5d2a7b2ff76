// One token on columns of a Lightning state, held in the registers of a warp: what decode, prefill,
// verify, replay and commit are made of, so the same token on the same columns gives the same bits.
//
// A warp holds kLightningColumns neighbouring columns of S [K, V]: lane l has the four columns from
// (l % 4) * 4, in rows l / 4, l / 4 + 8, l / 4 + 16, ... Rows behind D hold zeros.
#pragma once

#include <cstdint>

#include "cuda/device_rows.cuh"
#include "cuda/device_view.cuh"
#include "cuda/warp.cuh"
#include "linestate/ops/lightning.h"

namespace linestate {

inline constexpr int kLightningColumns = 16;
inline constexpr int kLightningGroups = 8;  // rows of S that a warp reads at once

struct LightningDevice {
  DeviceRows rows;
  DeviceSnapshots snapshots;
  DeviceView<3> q, k, v, out;
  DeviceView<1> slopes;
  DeviceView<4> state;
  int32_t H, D;
  float scale;
  int32_t layer;
  DeviceStatus* status;
};

inline LightningDevice lightning_device(const LightningParams& p, const ExecContext& context) {
  LightningDevice d{};
  d.rows = device_rows(p.rows, p.state.shape[0], p.q.shape[0]);
  d.snapshots = device_snapshots(p.snapshots);
  d.q = device_view<3>(p.q);
  d.k = device_view<3>(p.k);
  d.v = device_view<3>(p.v);
  d.out = device_view<3>(p.out);
  d.slopes = device_view<1>(p.slopes);
  d.state = device_view<4>(p.state);
  d.H = static_cast<int32_t>(p.q.shape[1]);
  d.D = static_cast<int32_t>(p.q.shape[2]);
  d.scale = p.scale;
  d.layer = p.layer;
  d.status = context.status;
  return d;
}

/// lambda^n as a sum of two f32: with hi = 1 for slow heads S * hi is exact, and the small
/// decrement is what gets rounded. Without it a slow head drifts (docs/decisions).
struct LightningDecay {
  float hi, lo;
};

__device__ inline double lightning_decay_f64(float slope, int64_t tokens) {
  return exp(-static_cast<double>(slope) * static_cast<double>(tokens));
}

__device__ inline LightningDecay lightning_decay(float slope, int64_t tokens) {
  const double decay = lightning_decay_f64(slope, tokens);
  const float hi = decay > 0.5 ? 1.0f : static_cast<float>(decay);
  return {hi, static_cast<float>(decay - static_cast<double>(hi))};
}

/// Runs call.template operator()<rows a lane holds>() for head dimension D.
template <typename Call>
auto with_lightning_rows(int64_t D, const Call& call) {
  if (D <= 64) return call.template operator()<8>();
  if (D <= 128) return call.template operator()<16>();
  return call.template operator()<32>();
}

template <int kRows>
struct LightningColumns {
  float s[kRows][4];
};

/// The lane's columns and rows.
__device__ inline int lightning_column() { return lane_id() % 4 * 4; }
__device__ inline int lightning_row(int i) { return lane_id() / 4 + kLightningGroups * i; }

/// Columns [first, first + 16) of (slot, h), from the lane's row `begin` on; zeros for a fresh row
/// whatever the slot holds. Every load is issued before any is used.
template <int kRows>
__device__ void load_lightning(const LightningDevice& p, int64_t slot, int64_t h, int64_t first,
                               bool fresh, LightningColumns<kRows>& S, int begin = 0) {
  const int64_t base = p.state.offset(slot, h, 0, first + lightning_column());
  if (p.state.packed && !fresh) {
    const bool narrow = p.state.dtype != DType::kF32;
    uint4 bits[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      bits[i] = make_uint4(0, 0, 0, 0);
      if (lightning_row(begin + i) < p.D) {
        bits[i] = load_quad_bits(p.state.data, narrow,
                                 base + lightning_row(begin + i) * p.state.stride[2]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) widen_quad(bits[i], p.state.dtype, S.s[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) S.s[i][e] = 0.0f;
    if (!fresh && lightning_row(begin + i) < p.D) {
      load_quad(p.state, base + lightning_row(begin + i) * p.state.stride[2], S.s[i]);
    }
  }
}

/// False when a finite value became infinite.
template <int kRows>
__device__ bool store_lightning(const LightningDevice& p, int64_t slot, int64_t h, int64_t first,
                                const LightningColumns<kRows>& S, int begin = 0) {
  const int64_t base = p.state.offset(slot, h, 0, first + lightning_column());
  bool fits = true;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (lightning_row(begin + i) >= p.D) continue;
    fits &= store_quad(p.state, base + lightning_row(begin + i) * p.state.stride[2], S.s[i]);
  }
  return fits;
}

/// store_lightning, and reports an overflow for row n of the call.
template <int kRows>
__device__ void keep_lightning(const LightningDevice& p, int64_t n, int64_t slot, int64_t h,
                               int64_t first, const LightningColumns<kRows>& S, int begin = 0) {
  if (store_lightning<kRows>(p, slot, h, first, S, begin)) return;
  raise_overflow(p.status, n, slot, p.layer);
}

/// One token in shared memory, [D] each; zeros behind D up to 256.
struct LightningToken {
  float q[256];  // times scale
  float k[256];
  float v[256];
};

/// Four columns of one row: S <- lambda S + k v, then o <- o + q S.
__device__ inline void step_lightning_row(float k, float q, const float (&v)[4],
                                          LightningDecay lambda, float (&s)[4], float (&o)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    s[e] = fmaf(lambda.hi, s[e], fmaf(lambda.lo, s[e], k * v[e]));
    o[e] = fmaf(q, s[e], o[e]);
  }
}

/// S <- lambda S + k v^T
template <int kRows>
__device__ void update_lightning(const float* k, const float (&v)[4], LightningDecay lambda,
                                 LightningColumns<kRows>& S, int begin = 0) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float k_i = k[lightning_row(begin + i)];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float s = S.s[i][e];
      S.s[i][e] = fmaf(lambda.hi, s, fmaf(lambda.lo, s, k_i * v[e]));
    }
  }
}

/// The lane's part of S^T q for its four columns, row after row onto `o`.
template <int kRows>
__device__ void add_lightning_rows(const float* q, const LightningColumns<kRows>& S, float (&o)[4],
                                   int begin = 0) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float q_i = q[lightning_row(begin + i)];
#pragma unroll
    for (int e = 0; e < 4; ++e) o[e] = fmaf(q_i, S.s[i][e], o[e]);
  }
}

/// The lanes' parts together; every lane of the same columns gets the same bits.
__device__ inline void sum_lightning_rows(float (&o)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) o[e] += __shfl_xor_sync(kAllLanes, o[e], mask);
  }
}

/// S^T q for the lane's four columns.
template <int kRows>
__device__ void read_lightning(const float* q, const LightningColumns<kRows>& S, float (&o)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) o[e] = 0.0f;
  add_lightning_rows<kRows>(q, S, o);
  sum_lightning_rows(o);
}

__device__ inline void lightning_value(const float* v, int64_t first, float (&out)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) out[e] = v[first + lightning_column() + e];
}

/// One token: update, then the output times scale.
template <int kRows>
__device__ void step_lightning(const LightningToken& token, int64_t first, LightningDecay lambda,
                               LightningColumns<kRows>& S, float (&o)[4]) {
  float v[4];
  lightning_value(token.v, first, v);
  update_lightning<kRows>(token.k, v, lambda, S);
  read_lightning<kRows>(token.q, S, o);
}

/// Four outputs of token t, by the first lane of each column.
__device__ inline void store_lightning_out(const LightningDevice& p, int64_t t, int64_t h,
                                           int64_t first, const float (&o)[4]) {
  if (lane_id() >= 4) return;
  store_quad(p.out, p.out.offset(t, h, first + lightning_column()), o);
}

__device__ inline void clear_lightning_out(const LightningDevice& p, int64_t t, int64_t h,
                                           int64_t first) {
  const float zeros[4] = {};
  store_lightning_out(p, t, h, first, zeros);
}

/// A fresh row without tokens: the warp's columns of its state become zero.
template <int kRows>
__device__ void clear_lightning(const LightningDevice& p, int64_t slot, int64_t h, int64_t first) {
  const LightningColumns<kRows> zeros = {};
  store_lightning<kRows>(p, slot, h, first, zeros);
}

/// One vector [D] into shared memory, zeros behind it, by threads `thread` of `threads`.
template <int kRank>
__device__ void fetch_lightning(const DeviceView<kRank>& view, int64_t at, int D, float factor,
                                int thread, int threads, float* to) {
  for (int c = thread; c < 256; c += threads) {
    to[c] = c < D ? load_f32(view.data, view.dtype, at + c * view.step()) * factor : 0.0f;
  }
}

__device__ inline void fetch_lightning_token(const LightningDevice& p, int64_t t, int64_t h,
                                             int thread, int threads, LightningToken& token) {
  fetch_lightning(p.q, p.q.offset(t, h), p.D, p.scale, thread, threads, token.q);
  fetch_lightning(p.k, p.k.offset(t, h), p.D, 1.0f, thread, threads, token.k);
  fetch_lightning(p.v, p.v.offset(t, h), p.D, 1.0f, thread, threads, token.v);
}

}  // namespace linestate
