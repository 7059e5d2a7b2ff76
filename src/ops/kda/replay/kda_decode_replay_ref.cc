// The dual form of include/linestate/ops/replay_ring.h in double. Pending records stay in the
// ring's dtype, Gamma in f32; S0 and u are rounded to f32 where they are made.
#include "base/device_status.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/kda/decode/kda_decode_head.h"
#include "ops/kda/kda_row_io.h"
#include "ops/kda/replay/kda_decode_replay_kernels.h"
#include "ops/kda/replay/kda_replay_row.h"

namespace linestate {
namespace {

struct RefScratch {
  KdaRefDecodeScratch decode;
  double* gamma;   // [K] product of decays since the checkpoint
  double* keys;    // [R, K] kappa, this token's k^ behind the pending ones
  double* values;  // [R, V] u
  double* k_dot;   // [R] kappa_j . k^
  double* q_dot;   // [R] kappa_j . q^
};

RefScratch take_scratch(const KdaReplayParams& p, Scratch& scratch) {
  const int64_t V = p.kda.state.shape[2];
  const int64_t K = p.kda.state.shape[3];
  const int64_t R = p.ring.keys.shape[2] + 1;
  RefScratch out;
  out.decode = take_kda_ref_decode_scratch(p.kda, scratch);
  out.gamma = scratch.take<double>(K);
  out.keys = scratch.take<double>(R * K);
  out.values = scratch.take<double>(R * V);
  out.k_dot = scratch.take<double>(R);
  out.q_dot = scratch.take<double>(R);
  return out;
}

int64_t scratch_bytes(const KdaReplayParams& p) {
  Scratch count;
  take_scratch(p, count);
  return count.bytes();
}

double element(const TensorView& tensor, int64_t offset) {
  return load_f32(tensor.data, tensor.dtype, offset);
}

bool set_element(const TensorView& tensor, int64_t offset, double value) {
  const auto rounded = static_cast<float>(value);
  return store_run(tensor.data, tensor.dtype, offset, 1, 1, &rounded);
}

// Gamma <- Gamma alpha; kappa_j <- kappa_j alpha; kappa_j . k^ and kappa_j . q^.
void read_ring(const KdaReplayParams& p, const KdaReplayRow& x, int64_t j, const RefScratch& s) {
  const ReplayRing& ring = p.ring;
  const int64_t V = p.kda.state.shape[2];
  const int64_t K = p.kda.state.shape[3];
  const KdaRefToken& token = s.decode.token;
  for (int64_t k = 0; k < K; ++k) {
    const double before =
        x.pending == 0 ? 1.0 : element(ring.gamma, offset_of(ring.gamma, x.row.slot, j, k));
    s.gamma[k] = before * static_cast<double>(token.alpha[k]);
  }
  for (int64_t r = 0; r <= x.pending; ++r) {
    s.k_dot[r] = s.q_dot[r] = 0.0;
    for (int64_t k = 0; k < K; ++k) {
      double& kappa = s.keys[r * K + k];
      kappa = r == x.pending ? token.k[k]
                             : element(ring.keys, offset_of(ring.keys, x.row.slot, j, r, k)) *
                                   static_cast<double>(token.alpha[k]);
      s.k_dot[r] += kappa * token.k[k];
      s.q_dot[r] += kappa * token.q[k];
    }
    for (int64_t v = 0; v < V && r < x.pending; ++v) {
      s.values[r * V + v] = element(ring.values, offset_of(ring.values, x.row.slot, j, r, v));
    }
  }
}

// p = S0 (Gamma k^) + sum_j (kappa_j . k^) u_j;  u = beta (v - p);
// o = S0 (Gamma q^) + sum_j (kappa_j . q^) u_j + (k^ . q^) u        (q^ includes the scale)
double step_row(const RefScratch& s, int64_t pending, int64_t V, int64_t K, int64_t v,
                double value) {
  const KdaRefToken& token = s.decode.token;
  const float* S0 = s.decode.S + v * K;
  double p = 0.0;
  double o = 0.0;
  for (int64_t k = 0; k < K; ++k) {
    p += static_cast<double>(S0[k]) * s.gamma[k] * token.k[k];
    o += static_cast<double>(S0[k]) * s.gamma[k] * token.q[k];
  }
  for (int64_t r = 0; r < pending; ++r) p += s.k_dot[r] * s.values[r * V + v];
  s.values[pending * V + v] = static_cast<float>(token.beta * (value - p));
  for (int64_t r = 0; r <= pending; ++r) o += s.q_dot[r] * s.values[r * V + v];
  return o;
}

// S0 <- S0 diag(Gamma) + sum_j u_j kappa_j^T, this token's record included.
void flush(const RefScratch& s, int64_t records, int64_t V, int64_t K) {
  for (int64_t v = 0; v < V; ++v) {
    for (int64_t k = 0; k < K; ++k) {
      double S = static_cast<double>(s.decode.S[v * K + k]) * s.gamma[k];
      for (int64_t r = 0; r < records; ++r) S += s.values[r * V + v] * s.keys[r * K + k];
      s.decode.S[v * K + k] = static_cast<float>(S);
    }
  }
}

// The decayed keys go back, this token's record behind them. False on overflow.
bool append(const KdaReplayParams& p, const KdaReplayRow& x, int64_t j, const RefScratch& s) {
  const ReplayRing& ring = p.ring;
  const int64_t V = p.kda.state.shape[2];
  const int64_t K = p.kda.state.shape[3];
  bool fits = true;
  for (int64_t k = 0; k < K; ++k) {
    set_element(ring.gamma, offset_of(ring.gamma, x.row.slot, j, k), s.gamma[k]);
    for (int64_t r = 0; r <= x.pending; ++r) {
      fits &= set_element(ring.keys, offset_of(ring.keys, x.row.slot, j, r, k), s.keys[r * K + k]);
    }
  }
  for (int64_t v = 0; v < V; ++v) {
    fits &= set_element(ring.values, offset_of(ring.values, x.row.slot, j, x.pending, v),
                        s.values[x.pending * V + v]);
  }
  if (x.row.fresh) clear_kda_state(p.kda.state, x.row, j);
  return fits;
}

void replay_head(const KdaReplayParams& params, const ExecContext& context, int64_t n, int64_t j,
                 RefScratch scratch) {
  const KdaParams& p = params.kda;
  const KdaReplayRow x = read_replay_row(params, n);
  if (x.plain()) return decode_kda_head_ref(p, context, n, j, scratch.decode);
  const int64_t V = p.state.shape[2];
  const int64_t K = p.state.shape[3];
  load_kda_state(p.state, x.row, j, scratch.decode.S);
  read_kda_ref_token(p, n, j, scratch.decode.token);
  read_ring(params, x, j, scratch);
  for (int64_t v = 0; v < V; ++v) {
    const double value = load_f32(p.v.data, p.v.dtype, offset_of(p.v, n, j, v));
    const double o = step_row(scratch, x.pending, V, K, v, value);
    store_f32(p.out.data, p.out.dtype, offset_of(p.out, n, j, v), static_cast<float>(o));
  }
  if (x.flush) {
    flush(scratch, x.pending + 1, V, K);
    store_kda_state(p, context, x.row, n, j, scratch.decode.S);
  } else if (!append(params, x, j, scratch)) {
    raise_overflow(context.status, static_cast<int32_t>(n), x.row.slot, p.layer);
  }
}

}  // namespace

int64_t kda_decode_replay_ref_workspace(const KdaReplayParams& params, const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status kda_decode_replay_ref(const KdaReplayParams& params, const ExecContext& context) {
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
