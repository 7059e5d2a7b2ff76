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
#pragma once

#include <cstdint>

#include "cpu/scratch.h"
#include "ops/kda/kda_head_token.h"

namespace linestate {

/// Borders between blocks are absolute multiples of this many tokens in the sequence.
inline constexpr int64_t kKdaBlock = 16;

/// Scratch of one block and what stays from block to block.
struct KdaBlock {
  int64_t K = 0;
  int64_t V = 0;
  float* S;        // [V, K] the state
  float* dt_bias;  // [K]
  float* alpha;    // [16, K]
  float* k;        // [16, K] k^
  float* q;        // [16, K] scale * q^
  float* v;        // [16, V]
  float* beta;     // [16]
  float* D;        // [16, K]
  float* P;        // [K]
  float* PK;       // [32, K] P_i k^_i, then P_i q^_i
  float* Y;        // [32, V] S (P_i k^_i), then S (P_i q^_i), which becomes o_i
  float* A;        // [16, 16]
  float* Aqk;      // [16, 16]
  float* u;        // [16, V]
};

KdaBlock take_kda_block(const KdaParams& params, Scratch& scratch);

/// Advances block.S by tokens [t, t + n), n <= 16, of value head j; their outputs are left in
/// rows 16 .. 16 + n of block.Y.
void run_kda_block(const KdaParams& params, const KdaGateHead& head, int64_t t, int64_t n,
                   int64_t j, KdaBlock& block);

}  // namespace linestate
