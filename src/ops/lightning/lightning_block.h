// A block of tokens of one head at once. With i, j counted inside the block and S0 the state
// before it:
//   o_i = scale * (lambda^(i+1) S0^T q_i + sum_{j<=i} lambda^(i-j) (q_i . k_j) v_j)
//   S   = lambda^n S0 + sum_j lambda^(n-1-j) k_j v_j^T          j = 0 .. n-1
// Every power of lambda is exp(-slope * m) with m >= 0, computed in double and rounded once.
//
// State and values lie in panels of 16 columns: [D / 16, rows, 16]. Row-major rows, a power of two
// apart, would fall on the same few cache sets and push each other out.
#pragma once

#include <cstdint>

#include "cpu/scratch.h"
#include "linestate/rows.h"
#include "linestate/tensor.h"

namespace linestate {

/// Tokens of a block; borders are absolute multiples of it in the sequence.
inline constexpr int64_t kLightningBlock = 32;
static_assert(kChunkTokens % kLightningBlock == 0,
              "a cut on the chunk grid is a cut between blocks");

/// Keys and values of a block as the products want them.
struct LightningBlock {
  int64_t dim = 0;
  float slope = 0.0f;
  // Columns of V that this task computes, multiples of 16: columns never meet, so a head may be
  // shared by threads without changing a bit. Others are neither read nor written.
  int64_t begin = 0;
  int64_t end = 0;
  float* k;        // [kLightningBlock, D]
  float* k_decay;  // [kLightningBlock, D], k_j * lambda^(n-1-j)
  float* v;        // panels [D / 16, kLightningBlock, 16]
  float* lambda;   // [kLightningBlock + 1], lambda^m
};

/// All columns.
LightningBlock cut_lightning_block(Scratch& scratch, int64_t dim, float slope);

/// lambda^m for m up to `most` <= kLightningBlock.
void fill_lambda(const LightningBlock& block, int64_t most);

/// Tokens of the next block, when `done` of `tokens` tokens behind position `start` are through.
int64_t next_block(int64_t start, int64_t done, int64_t tokens);

/// k and v of the head's token `token`, tensors [T, H, D], become token i of the block.
void load_block_token(const LightningBlock& block, int64_t i, const ConstTensorView& k,
                      const ConstTensorView& v, int64_t token, int64_t head);

/// S, in panels, after the first n tokens of the block, from S before it. REQUIRES: k, v and
/// lambda filled for n tokens.
void advance_block(const LightningBlock& block, int64_t n, float* S);

/// What outputs need besides.
struct LightningQueries {
  float* q;        // [kLightningBlock, D]
  float* q_decay;  // [kLightningBlock, D], q_i * scale * lambda^(i+1)
  float* kT;       // [D, kLightningBlock]
  float* A;        // [kLightningBlock, kLightningBlock], scale * lambda^(i-j) (q_i . k_j)
  float* o;        // panels [D / 16, kLightningBlock, 16]
  float* scaled;   // [kLightningBlock + 1], scale * lambda^m
  float* reverse;  // [2 kLightningBlock], scaled[kLightningBlock - 1 - m], then zeros
};

LightningQueries cut_lightning_queries(Scratch& scratch, int64_t dim);

/// Powers for blocks of up to `most` tokens.
void fill_scaled(const LightningQueries& queries, float scale, float slope, int64_t most);

/// Outputs of the block's n tokens from tokens [begin, begin + n) of q, rounded into `out`, both
/// [T, H, D]; then S, in panels, as advance_block. REQUIRES: k, v, lambda and the powers filled.
void run_block(const LightningBlock& block, const LightningQueries& queries, int64_t n,
               const ConstTensorView& q, const TensorView& out, int64_t begin, int64_t head,
               float* S);

/// Columns [begin, end) of the state [K, V] of (slot, head) in panels; zeros for a fresh row,
/// whatever the slot holds.
void load_panels(const TensorView& state, int64_t slot, int64_t head, bool fresh, int64_t begin,
                 int64_t end, float* S);
/// Returns false when a finite value became infinite in the pool's dtype.
bool store_panels(const TensorView& state, int64_t slot, int64_t head, int64_t begin, int64_t end,
                  const float* S);

}  // namespace linestate
