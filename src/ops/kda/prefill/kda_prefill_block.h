// Sixteen tokens of one value head at a time: the chunked form of the KDA recurrence in f32.
//
// With tokens i, j of a block, alpha_t the decay of one token, P_i = alpha_0 * ... * alpha_i and
// S the state before the block,
//   D_j   = k^_j * alpha_{j+1} * ... * alpha_i        keys decayed up to token i
//   A_ij  = beta_i k^_i . D_j   (j < i)               Aqk_ij = q^_i . D_j   (j <= i)
//   u_i   = beta_i (v_i - S (P_i k^_i)) - sum_{j<i} A_ij u_j
//   o_i   = S (P_i q^_i) + sum_{j<=i} Aqk_ij u_j
//   S    <- S diag(P_last) + sum_j u_j D_j^T
// (q^ includes the scale.) Every decay is a product of alphas, so no factor exceeds 1 and no
// exponent is ever taken of anything but one token's g: strong gates need no care. The triangular
// system is solved by substitution, which stays exact when keys repeat.
//
// Two stages. The factors (D, P, A, Aqk, P k^, P q^) know nothing of S or v. The state stage then
// goes through S^T sixteen columns of V at a time; columns do not depend on each other, so a thread
// may own any of them and no bit of a result changes.
#pragma once

#include <cstdint>

#include "base/int_math.h"
#include "cpu/scratch.h"
#include "ops/kda/kda_head_token.h"

namespace linestate {

/// Borders between blocks are absolute multiples of this many tokens in the sequence.
inline constexpr int64_t kKdaBlock = 16;
/// Columns of V in one panel of S^T.
inline constexpr int64_t kKdaPanel = 16;

/// Scratch of one block and what stays from block to block.
struct KdaBlock {
  int64_t K = 0;
  int64_t v_begin = 0;  // the columns of V this state holds
  int64_t v_end = 0;
  float* S;        // [(v_end - v_begin) / 16][K][16] panels of S^T
  float* dt_bias;  // [K]
  float* alpha;    // [16, K]
  float* k;        // [16, K] k^
  float* q;        // [16, K] scale * q^
  float* beta;     // [16]
  float* D;        // [16, K]
  float* P;        // [K]
  float* PK;       // [2 n, K] P_i k^_i, then P_i q^_i, n the tokens of the block
  float* A;        // [16, 16]
  float* Aqk;      // [16, 16]

  int64_t state_size() const { return (v_end - v_begin) * K; }
};

inline KdaBlock take_kda_block(const KdaParams& params, int64_t v_begin, int64_t v_end,
                               Scratch& scratch) {
  KdaBlock b{};
  b.K = params.state.shape[3];
  b.v_begin = v_begin;
  b.v_end = v_end;
  b.S = scratch.take<float>(b.state_size());
  b.dt_bias = scratch.take<float>(b.K);
  b.alpha = scratch.take<float>(kKdaBlock * b.K);
  b.k = scratch.take<float>(kKdaBlock * b.K);
  b.q = scratch.take<float>(kKdaBlock * b.K);
  b.beta = scratch.take<float>(kKdaBlock);
  b.D = scratch.take<float>(kKdaBlock * b.K);
  b.P = scratch.take<float>(b.K);
  b.PK = scratch.take<float>(2 * kKdaBlock * b.K);
  b.A = scratch.take<float>(kKdaBlock * kKdaBlock);
  b.Aqk = scratch.take<float>(kKdaBlock * kKdaBlock);
  return b;
}

/// Tokens [t, t + n), n <= 16, of value head j; tokens up to `end` follow in the same row.
struct KdaSpan {
  int64_t t;
  int64_t n;
  int64_t j;
  int64_t end;
};

/// Advances block.S by the tokens of `span` and stores their outputs.
void run_kda_block(const KdaParams& params, const KdaGateHead& head, const KdaSpan& span,
                   const KdaBlock& block);

/// block.S from a slot of the pool, or zeros.
void load_kda_panels(const TensorView& state, int64_t slot, bool fresh, int64_t j,
                     const KdaBlock& block);
/// block.S into a slot. False when a finite value became infinite in the pool's dtype.
bool store_kda_panels(const TensorView& state, int64_t slot, int64_t j, const KdaBlock& block);

}  // namespace linestate
