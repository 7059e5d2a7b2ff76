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
};

KdaRefToken take_kda_ref_token(const KdaParams& params, Scratch& scratch);

/// Gate, beta and norms of token t for value head j.
void read_kda_ref_token(const KdaParams& params, int64_t t, int64_t j, KdaRefToken& token);

/// Advances row v of the state, s [K], by one token; returns o_t[v].
double step_kda_ref_row(const KdaRefToken& token, int64_t K, double v, float* s);

}  // namespace linestate
