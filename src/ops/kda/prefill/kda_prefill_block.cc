#include "ops/kda/prefill/kda_prefill_block.h"

#include <algorithm>

#include "base/int_math.h"
#include "ops/kda/kda_lanes.h"

namespace linestate {
namespace {

// Tiles are 4 tokens high; rows behind the last token are zero.
constexpr int64_t kTile = 4;

void read_block(const KdaParams& p, const KdaGateHead& head, int64_t t, int64_t n, int64_t j,
                KdaBlock& b) {
  for (int64_t i = 0; i < n; ++i) {
    KdaHeadToken token{b.alpha + i * b.K, b.k + i * b.K, b.q + i * b.K, b.v + i * b.V, 0.0f};
    read_kda_head_token(p, head, t + i, j, token);
    b.beta[i] = token.beta;
  }
}

// D_j <- D_j * alpha_i, then A_ij and Aqk_ij from it, for one j < i.
void decay_key(const KdaBlock& b, int64_t i, int64_t j) {
  const float* alpha = b.alpha + i * b.K;
  const float* k_i = b.k + i * b.K;
  const float* q_i = b.q + i * b.K;
  float* D_j = b.D + j * b.K;
  Lanes kd[2] = {};
  Lanes qd[2] = {};
  for (int64_t k = 0; k < b.K; k += 2 * kLaneCount) {
    for (int64_t l = 0; l < 2; ++l) {
      const int64_t at = k + l * kLaneCount;
      const Lanes decayed = lanes_load(D_j + at) * lanes_load(alpha + at);
      lanes_store(D_j + at, decayed);
      kd[l] += decayed * lanes_load(k_i + at);
      qd[l] += decayed * lanes_load(q_i + at);
    }
  }
  b.A[i * kKdaBlock + j] = b.beta[i] * lanes_sum(kd[0] + kd[1]);
  b.Aqk[i * kKdaBlock + j] = lanes_sum(qd[0] + qd[1]);
}

// Row i of D, P, PK and the diagonal of Aqk.
void enter_key(const KdaBlock& b, int64_t i) {
  const float* alpha = b.alpha + i * b.K;
  const float* k_i = b.k + i * b.K;
  const float* q_i = b.q + i * b.K;
  Lanes qk[2] = {};
  for (int64_t k = 0; k < b.K; k += 2 * kLaneCount) {
    for (int64_t l = 0; l < 2; ++l) {
      const int64_t at = k + l * kLaneCount;
      const Lanes key = lanes_load(k_i + at);
      const Lanes query = lanes_load(q_i + at);
      const Lanes step = lanes_load(alpha + at);
      const Lanes P = i == 0 ? step : lanes_load(b.P + at) * step;
      lanes_store(b.P + at, P);
      lanes_store(b.D + i * b.K + at, key);
      lanes_store(b.PK + i * b.K + at, P * key);
      lanes_store(b.PK + (kKdaBlock + i) * b.K + at, P * query);
      qk[l] += key * query;
    }
  }
  b.Aqk[i * kKdaBlock + i] = lanes_sum(qk[0] + qk[1]);
}

void clear_rows(float* rows, int64_t begin, int64_t end, int64_t width) {
  std::fill(rows + begin * width, rows + end * width, 0.0f);
}

void relate_tokens(const KdaBlock& b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) decay_key(b, i, j);
    enter_key(b, i);
  }
  const int64_t end = round_up(n, kTile);
  clear_rows(b.D, n, end, b.K);
  clear_rows(b.PK, n, end, b.K);
  clear_rows(b.PK + kKdaBlock * b.K, n, end, b.K);
}

// Y[r .. r+3, v .. v+1] = PK[r .. r+3] . S[v .. v+1].
void project_tile(const KdaBlock& b, int64_t r, int64_t v) {
  const float* S = b.S + v * b.K;
  const float* PK = b.PK + r * b.K;
  Lanes sum[2][kTile] = {};
  for (int64_t k = 0; k < b.K; k += kLaneCount) {
    const Lanes s0 = lanes_load(S + k);
    const Lanes s1 = lanes_load(S + b.K + k);
    for (int64_t i = 0; i < kTile; ++i) {
      const Lanes x = lanes_load(PK + i * b.K + k);
      sum[0][i] += s0 * x;
      sum[1][i] += s1 * x;
    }
  }
  for (int64_t i = 0; i < kTile; ++i) {
    b.Y[(r + i) * b.V + v] = lanes_sum(sum[0][i]);
    b.Y[(r + i) * b.V + v + 1] = lanes_sum(sum[1][i]);
  }
}

void project(const KdaBlock& b, int64_t n) {
  for (int64_t v = 0; v < b.V; v += 2) {
    for (int64_t i = 0; i < n; i += kTile) {
      project_tile(b, i, v);
      project_tile(b, kKdaBlock + i, v);
    }
  }
}

// Sixteen columns of u and o.
void solve_columns(const KdaBlock& b, int64_t n, int64_t v) {
  constexpr int64_t kWide = 4;
  for (int64_t i = 0; i < n; ++i) {
    const float* v_i = b.v + i * b.V + v;
    const float* y_i = b.Y + i * b.V + v;
    float* o_i = b.Y + (kKdaBlock + i) * b.V + v;
    const Lanes beta = lanes_of(b.beta[i]);
    Lanes u[kWide];
    Lanes o[kWide];
    for (int64_t l = 0; l < kWide; ++l) {
      const int64_t at = l * kLaneCount;
      u[l] = beta * (lanes_load(v_i + at) - lanes_load(y_i + at));
      o[l] = lanes_load(o_i + at);
    }
    for (int64_t j = 0; j < i; ++j) {
      const Lanes a = lanes_of(b.A[i * kKdaBlock + j]);
      const Lanes aqk = lanes_of(b.Aqk[i * kKdaBlock + j]);
      for (int64_t l = 0; l < kWide; ++l) {
        const Lanes u_j = lanes_load(b.u + j * b.V + v + l * kLaneCount);
        u[l] -= a * u_j;
        o[l] += aqk * u_j;
      }
    }
    const Lanes diagonal = lanes_of(b.Aqk[i * kKdaBlock + i]);
    for (int64_t l = 0; l < kWide; ++l) {
      lanes_store(b.u + i * b.V + v + l * kLaneCount, u[l]);
      lanes_store(o_i + l * kLaneCount, o[l] + diagonal * u[l]);
    }
  }
}

void solve(const KdaBlock& b, int64_t n) {
  for (int64_t v = 0; v < b.V; v += 16) solve_columns(b, n, v);
  clear_rows(b.u, n, round_up(n, kTile), b.V);
}

// S[v .. v+1] <- S diag(P) + sum over tokens j .. j+3 of u D^T; P only with the first four.
template <bool kDecay>
void update_tile(const KdaBlock& b, int64_t j, int64_t v) {
  float* S0 = b.S + v * b.K;
  float* S1 = S0 + b.K;
  const float* D = b.D + j * b.K;
  Lanes u[2][kTile];
  for (int64_t i = 0; i < kTile; ++i) {
    u[0][i] = lanes_of(b.u[(j + i) * b.V + v]);
    u[1][i] = lanes_of(b.u[(j + i) * b.V + v + 1]);
  }
  for (int64_t k = 0; k < b.K; k += kLaneCount) {
    Lanes s0 = lanes_load(S0 + k);
    Lanes s1 = lanes_load(S1 + k);
    if constexpr (kDecay) {
      const Lanes P = lanes_load(b.P + k);
      s0 *= P;
      s1 *= P;
    }
    for (int64_t i = 0; i < kTile; ++i) {
      const Lanes d = lanes_load(D + i * b.K + k);
      s0 += u[0][i] * d;
      s1 += u[1][i] * d;
    }
    lanes_store(S0 + k, s0);
    lanes_store(S1 + k, s1);
  }
}

void update(const KdaBlock& b, int64_t n) {
  for (int64_t v = 0; v < b.V; v += 2) {
    update_tile<true>(b, 0, v);
    for (int64_t j = kTile; j < n; j += kTile) update_tile<false>(b, j, v);
  }
}

}  // namespace

KdaBlock take_kda_block(const KdaParams& params, Scratch& scratch) {
  KdaBlock b{};
  b.V = params.state.shape[2];
  b.K = params.state.shape[3];
  b.S = scratch.take<float>(b.V * b.K);
  b.dt_bias = scratch.take<float>(b.K);
  b.alpha = scratch.take<float>(kKdaBlock * b.K);
  b.k = scratch.take<float>(kKdaBlock * b.K);
  b.q = scratch.take<float>(kKdaBlock * b.K);
  b.v = scratch.take<float>(kKdaBlock * b.V);
  b.beta = scratch.take<float>(kKdaBlock);
  b.D = scratch.take<float>(kKdaBlock * b.K);
  b.P = scratch.take<float>(b.K);
  b.PK = scratch.take<float>(2 * kKdaBlock * b.K);
  b.Y = scratch.take<float>(2 * kKdaBlock * b.V);
  b.A = scratch.take<float>(kKdaBlock * kKdaBlock);
  b.Aqk = scratch.take<float>(kKdaBlock * kKdaBlock);
  b.u = scratch.take<float>(kKdaBlock * b.V);
  return b;
}

void run_kda_block(const KdaParams& params, const KdaGateHead& head, int64_t t, int64_t n,
                   int64_t j, KdaBlock& block) {
  read_block(params, head, t, n, j, block);
  relate_tokens(block, n);
  project(block, n);
  solve(block, n);
  update(block, n);
}

}  // namespace linestate
