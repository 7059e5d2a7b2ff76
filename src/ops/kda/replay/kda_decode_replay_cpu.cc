// Buffered decode on the CPU in f32: dot products with the checkpoint and with the pending keys
// instead of a state that is rewritten for every token.
#include <algorithm>

#include "base/device_status.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/kda/decode/kda_decode_head.h"
#include "ops/kda/kda_row_io.h"
#include "ops/kda/replay/kda_decode_replay_kernels.h"
#include "ops/kda/replay/kda_replay_row.h"
#include "ops/kda/replay/kda_replay_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kda/replay/kda_decode_replay_cpu.cc"
#include <hwy/foreach_target.h>

#include "cpu/simd_run_inl.h"
#include "ops/kda/kda_math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

// Gamma, the pending records decayed to now, and what their keys say to k^ and q^.
HWY_INLINE void read_ring(const KdaReplayParams& p, const KdaReplayRow& x, int64_t j,
                          const KdaReplayScratch& s) {
  const int64_t V = p.kda.state.shape[2];
  const int64_t K = p.kda.state.shape[3];
  const KdaHeadToken& token = s.decode.token;
  std::copy(token.alpha, token.alpha + K, s.gamma);
  if (x.pending > 0) {
    const TensorView& gamma = p.ring.gamma;
    simd_load_run(gamma.data, gamma.dtype, offset_of(gamma, x.row.slot, j), gamma.stride[2], K,
                  s.gamma);
    run_multiply(s.gamma, token.alpha, K, s.gamma);
  }
  run_multiply(s.gamma, token.k, K, s.k);
  run_multiply(s.gamma, token.q, K, s.q);
  for (int64_t r = 0; r < x.pending; ++r) {
    const RingRun key = ring_run(p.ring.keys, x.row.slot, j, r);
    const RingRun value = ring_run(p.ring.values, x.row.slot, j, r);
    float* kappa = s.keys + r * K;
    simd_load_run(key.data, key.dtype, key.offset, key.stride, K, kappa);
    simd_load_run(value.data, value.dtype, value.offset, value.stride, V, s.values + r * V);
    run_multiply(kappa, token.alpha, K, kappa);
    s.k_dot[r] = run_dot(kappa, token.k, K);
    s.q_dot[r] = run_dot(kappa, token.q, K);
  }
  std::copy(token.k, token.k + K, s.keys + x.pending * K);
  s.q_dot[x.pending] = run_dot(token.k, token.q, K);
}

// Row v of S0; a fresh row has none.
HWY_INLINE void load_state_row(const KdaReplayParams& p, const RowInfo& row, int64_t j, int64_t v,
                               float* s) {
  const TensorView& state = p.kda.state;
  const int64_t K = state.shape[3];
  if (row.fresh) {
    std::fill(s, s + K, 0.0f);
  } else {
    simd_load_run(state.data, state.dtype, offset_of(state, row.slot, j, v), state.stride[3], K, s);
  }
}

// u and o of this token for row v; returns u.
HWY_INLINE float step_row(const KdaHeadToken& token, int64_t pending, int64_t V, int64_t K,
                          int64_t v, const KdaReplayScratch& x) {
  float p = 0.0f;
  float o = 0.0f;
  for (int64_t r = 0; r < pending; ++r) {
    p += x.k_dot[r] * x.values[r * V + v];
    o += x.q_dot[r] * x.values[r * V + v];
  }
  p += run_dot(x.decode.s, x.k, K);
  const float u = token.beta * (token.v[v] - p);
  x.decode.o[v] = run_dot(x.decode.s, x.q, K) + (o + x.q_dot[pending] * u);
  return u;
}

// S0[v] <- S0[v] Gamma + sum_j u_j[v] kappa_j, this token's record included.
HWY_INLINE void flush_row(int64_t records, int64_t V, int64_t K, int64_t v,
                          const KdaReplayScratch& x) {
  float* s = x.decode.s;
  run_multiply(s, x.gamma, K, s);
  for (int64_t r = 0; r < records; ++r) {
    const float u = x.values[r * V + v];
    run_add_scaled(x.keys + r * K, u, K, s);
  }
}

// The decayed keys go back, this token's record behind them. False on overflow.
HWY_INLINE bool append(const KdaReplayParams& p, const KdaReplayRow& x, int64_t j,
                       const KdaReplayScratch& s) {
  const int64_t V = p.kda.state.shape[2];
  const int64_t K = p.kda.state.shape[3];
  bool fits = true;
  for (int64_t r = 0; r <= x.pending; ++r) {
    const RingRun key = ring_run(p.ring.keys, x.row.slot, j, r);
    fits &= simd_store_run(key.data, key.dtype, key.offset, key.stride, K, s.keys + r * K);
  }
  const RingRun value = ring_run(p.ring.values, x.row.slot, j, x.pending);
  fits &= simd_store_run(value.data, value.dtype, value.offset, value.stride, V,
                         s.values + x.pending * V);
  const TensorView& gamma = p.ring.gamma;
  simd_store_run(gamma.data, gamma.dtype, offset_of(gamma, x.row.slot, j), gamma.stride[2], K,
                 s.gamma);
  if (x.row.fresh) clear_kda_state(p.kda.state, x.row, j);
  return fits;
}

// One token of a head that buffers. False when a finite value became infinite.
bool replay_token(const KdaReplayParams& params, const KdaReplayRow& x, int64_t n, int64_t j,
                  KdaReplayScratch& scratch) {
  const KdaParams& p = params.kda;
  const TensorView& state = p.state;
  const int64_t V = state.shape[2];
  const int64_t K = state.shape[3];
  KdaHeadToken& token = scratch.decode.token;
  read_kda_head_token(p, read_kda_gate_head(p, j, scratch.decode.dt_bias), n, j, token);
  read_ring(params, x, j, scratch);
  bool fits = true;
  for (int64_t v = 0; v < V; ++v) {
    float* s = scratch.decode.s;
    load_state_row(params, x.row, j, v, s);
    scratch.values[x.pending * V + v] = step_row(token, x.pending, V, K, v, scratch);
    if (!x.flush) continue;
    flush_row(x.pending + 1, V, K, v, scratch);
    fits &= simd_store_run(state.data, state.dtype, offset_of(state, x.row.slot, j, v),
                           state.stride[3], K, s);
  }
  if (!x.flush) fits = append(params, x, j, scratch);
  simd_store_run(p.out.data, p.out.dtype, offset_of(p.out, n, j), p.out.stride[2], V,
                 scratch.decode.o);
  return fits;
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(replay_token);

namespace {

KdaReplayScratch take_scratch(const KdaReplayParams& p, Scratch& scratch) {
  const int64_t V = p.kda.state.shape[2];
  const int64_t K = p.kda.state.shape[3];
  const int64_t R = p.ring.keys.shape[2] + 1;
  KdaReplayScratch out;
  out.decode = take_kda_decode_scratch(p.kda, scratch);
  out.gamma = scratch.take<float>(K);
  out.k = scratch.take<float>(K);
  out.q = scratch.take<float>(K);
  out.keys = scratch.take<float>(R * K);
  out.values = scratch.take<float>(R * V);
  out.k_dot = scratch.take<float>(R);
  out.q_dot = scratch.take<float>(R);
  return out;
}

int64_t scratch_bytes(const KdaReplayParams& p) {
  Scratch count;
  take_scratch(p, count);
  return count.bytes();
}

void replay_head(const KdaReplayParams& params, const ExecContext& context, int64_t n, int64_t j,
                 KdaReplayScratch scratch) {
  const KdaParams& p = params.kda;
  const KdaReplayRow x = read_replay_row(params, n);
  if (x.plain()) return decode_kda_head_cpu(p, context, n, j, scratch.decode);
  const bool fits = HWY_DYNAMIC_DISPATCH(replay_token)(params, x, n, j, scratch);
  if (!fits) raise_overflow(context.status, static_cast<int32_t>(n), x.row.slot, p.layer);
}

}  // namespace

int64_t kda_decode_replay_cpu_workspace(const KdaReplayParams& params, const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status kda_decode_replay_cpu(const KdaReplayParams& params, const ExecContext& context) {
  const int64_t HV = params.kda.v.shape[1];
  const int64_t bytes = scratch_bytes(params);
  parallel_for(context, params.kda.q.shape[0] * HV, [&](int64_t task, int thread) {
    Scratch scratch = thread_scratch(context, thread, bytes);
    replay_head(params, context, task / HV, task % HV, take_scratch(params, scratch));
  });
  raise_if_not_finite(context, params.kda.out);
  return {};
}

}  // namespace linestate
#endif
