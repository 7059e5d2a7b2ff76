// The state over a block of tokens at once:
//   S <- lambda^n S + sum_j lambda^(n-1-j) k_j v_j^T          j = 0 .. n-1
// Every power of lambda is exp(-slope * m) with m >= 0, computed in double and rounded once.
#pragma once

#include <cstdint>

#include "cpu/scratch.h"
#include "linestate/rows.h"

namespace linestate {

/// Tokens of a block; borders are absolute multiples of it in the sequence.
inline constexpr int64_t kLightningBlock = 32;
static_assert(kChunkTokens % kLightningBlock == 0,
              "a cut on the chunk grid is a cut between blocks");

/// Keys and values of a block as the products want them.
struct LightningBlock {
  int64_t dim = 0;
  float slope = 0.0f;
  float* kT;       // [D, kLightningBlock]
  float* k_decay;  // [D, kLightningBlock], k_j * lambda^(n-1-j)
  float* v;        // [kLightningBlock, D]
  float* lambda;   // [kLightningBlock + 1], lambda^m
};

LightningBlock cut_lightning_block(Scratch& scratch, int64_t dim, float slope);

/// lambda^m for m up to `most` <= kLightningBlock.
void fill_lambda(const LightningBlock& block, int64_t most);

/// Tokens of the next block, when `done` of `tokens` tokens behind position `start` are through.
int64_t next_block(int64_t start, int64_t done, int64_t tokens);

/// S [K, V] after the first n tokens of the block, from S before it. REQUIRES: kT, v and lambda
/// filled for n tokens.
void advance_block(const LightningBlock& block, int64_t n, float* S);

}  // namespace linestate
