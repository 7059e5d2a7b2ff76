// One token of the KDA recurrence in double precision: what `ref` of every phase is made of.
// S, u, alpha and the inverse norms are rounded to f32, nothing else is.
#pragma once

#include <cstdint>

#include "cpu/scratch.h"
#include "linestate/ops/kda.h"

namespace linestate {

/// One token as one value head sees it.
struct KdaRefToken {
  float* alpha;  // [K] exp(g)
  double* k;     // [K] k^
  double* q;     // [K] scale * q^
  double beta = 0.0;
  float k_inverse_norm = 1.0f;
};

KdaRefToken take_kda_ref_token(const KdaParams& params, Scratch& scratch);

/// Gate, beta and norms of token t for value head j.
void read_kda_ref_token(const KdaParams& params, int64_t t, int64_t j, KdaRefToken& token);

/// Advances row v of the state, s [K], by one token; returns o_t[v], and u_t[v] where asked for.
double step_kda_ref_row(const KdaRefToken& token, int64_t K, double v, float* s,
                        float* u_out = nullptr);

/// s [K] <- s * alpha + u k^, the state's share of a token whose u is known.
void update_kda_ref_row(const float* alpha, const double* k, float u, int64_t K, float* s);

}  // namespace linestate
