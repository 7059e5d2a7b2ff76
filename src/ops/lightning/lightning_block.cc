#include "ops/lightning/lightning_block.h"

#include "base/int_math.h"
#include "cpu/small_matmul.h"
#include "ops/lightning/lightning_decay.h"

namespace linestate {

LightningBlock cut_lightning_block(Scratch& scratch, int64_t dim, float slope) {
  LightningBlock block;
  block.dim = dim;
  block.slope = slope;
  block.kT = scratch.take<float>(dim * kLightningBlock);
  block.k_decay = scratch.take<float>(dim * kLightningBlock);
  block.v = scratch.take<float>(kLightningBlock * dim);
  block.lambda = scratch.take<float>(kLightningBlock + 1);
  return block;
}

void fill_lambda(const LightningBlock& block, int64_t most) {
  for (int64_t m = 0; m <= most; ++m) {
    block.lambda[m] = static_cast<float>(decay_f64(block.slope, m));
  }
}

int64_t next_block(int64_t start, int64_t done, int64_t tokens) {
  const int64_t to_border = kLightningBlock - (start + done) % kLightningBlock;
  return min_i64(to_border, tokens - done);
}

void advance_block(const LightningBlock& block, int64_t n, float* S) {
  const int64_t dim = block.dim;
  float weight[kLightningBlock];
  for (int64_t j = 0; j < n; ++j) weight[j] = block.lambda[n - 1 - j];
  for (int64_t d = 0; d < dim; ++d) {
    const float* k = block.kT + d * kLightningBlock;
    float* k_decay = block.k_decay + d * kLightningBlock;
    for (int64_t j = 0; j < n; ++j) k_decay[j] = k[j] * weight[j];
  }
  const SplitDecay decay = split_decay(block.slope, n);
  small_matmul(
      {block.k_decay, block.v, S, kLightningBlock, dim, dim, dim, dim, n, decay.hi, decay.lo});
}

}  // namespace linestate
