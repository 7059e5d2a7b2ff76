#include "ops/lightning/lightning_block.h"

#include <cstring>

#include "base/element.h"
#include "base/int_math.h"
#include "ops/lightning/lightning_decay.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/lightning/lightning_block.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>

#include "cpu/simd_panel_inl.h"
#include "cpu/simd_run_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

// Names that several targets share; the arithmetic of an element does not depend on the tile it is
// computed in.
constexpr int64_t kTokens = kLightningBlock;
constexpr int64_t kMostDim = 256;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kLineBytes = 64;

// Elements [0, dim) of a row to or from every panel's row `at`.
HWY_INLINE void row_to_panels(const float* row, int64_t dim, int64_t rows, int64_t at, float* out) {
  for (int64_t e = 0; e < dim; e += kGroup) {
    group_store(out + (e * rows + at * kGroup), group_load(row + e));
  }
}
HWY_INLINE void panels_to_row(const float* in, int64_t dim, int64_t rows, int64_t at, float* row) {
  for (int64_t e = 0; e < dim; e += kGroup) {
    group_store(row + e, group_load(in + (e * rows + at * kGroup)));
  }
}

void load_state_panels(const TensorView& state, int64_t slot, int64_t head, int64_t begin,
                       int64_t end, float* S) {
  const int64_t dim = state.shape[2];
  const int64_t columns = end - begin;
  const int64_t row_bytes = columns * dtype_bytes(state.dtype);
  HWY_ALIGN float row[kMostDim];
  for (int64_t d = 0; d < dim; ++d) {
    // Hardware prefetchers stop at a page's end.
    const char* ahead = static_cast<const char*>(state.data) +
                        offset_of(state, slot, head, d, begin) * dtype_bytes(state.dtype) +
                        kPageBytes;
    for (int64_t b = 0; b < row_bytes; b += kLineBytes) hwy::Prefetch(ahead + b);
    simd_load_run(state.data, state.dtype, offset_of(state, slot, head, d, begin), state.stride[3],
                  columns, row);
    row_to_panels(row, columns, dim, d, S + begin * dim);
  }
}

bool store_state_panels(const TensorView& state, int64_t slot, int64_t head, int64_t begin,
                        int64_t end, const float* S) {
  const int64_t dim = state.shape[2];
  HWY_ALIGN float row[kMostDim];
  const int64_t columns = end - begin;
  bool fits = true;
  for (int64_t d = 0; d < dim; ++d) {
    panels_to_row(S + begin * dim, columns, dim, d, row);
    fits &= simd_store_run(state.data, state.dtype, offset_of(state, slot, head, d, begin),
                           state.stride[3], columns, row);
  }
  return fits;
}

// Tokens of one head lie a whole token apart, too far for a hardware prefetcher: the token of the
// next block is asked for while this one is loaded.
HWY_INLINE void prefetch_token(const ConstTensorView& tensor, int64_t token, int64_t head) {
  if (token >= tensor.shape[0] || tensor.stride[2] != 1) return;
  const int64_t bytes = dtype_bytes(tensor.dtype);
  const char* row = static_cast<const char*>(tensor.data) + offset_of(tensor, token, head) * bytes;
  for (int64_t b = 0; b < tensor.shape[2] * bytes; b += kLineBytes) hwy::Prefetch(row + b);
}

void load_kv(const LightningBlock& block, int64_t i, const ConstTensorView& k,
             const ConstTensorView& v, int64_t token, int64_t head) {
  HWY_ALIGN float row[kMostDim];
  simd_load_run(k.data, k.dtype, offset_of(k, token, head), k.stride[2], block.dim,
                block.k + i * block.dim);
  simd_load_run(v.data, v.dtype, offset_of(v, token, head), v.stride[2], block.dim, row);
  row_to_panels(row, block.dim, kTokens, i, block.v);
  prefetch_token(k, token + kTokens, head);
  prefetch_token(v, token + kTokens, head);
}

HWY_INLINE void scale_row(const float* in, float factor, int64_t dim, float* out) {
  const Group factors = group_of(factor);
  for (int64_t d = 0; d < dim; d += kGroup) group_store(out + d, group_load(in + d) * factors);
}

HWY_INLINE void decay_keys(const LightningBlock& block, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    scale_row(block.k + j * block.dim, block.lambda[n - 1 - j], block.dim,
              block.k_decay + j * block.dim);
  }
}

// One panel of S: S <- hi S + (lo S + k_decay^T v).
HWY_INLINE void advance_panel(const LightningBlock& block, int64_t n, SplitDecay decay,
                              const float* v, float* S) {
  const Group hi = group_of(decay.hi);
  const Group lo = group_of(decay.lo);
  for (int64_t d = 0; d < block.dim; d += kPanelRows) {
    PanelTile sum;
    for (int r = 0; r < kPanelRows; ++r) sum.at[r][0] = group_load(S + (d + r) * kGroup) * lo;
    panel_multiply({block.k_decay + d, 1, block.dim}, v, kGroup, n, sum);
    for (int r = 0; r < kPanelRows; ++r) {
      float* at = S + (d + r) * kGroup;
      group_store(at, mul_add(group_load(at), hi, sum.at[r][0]));
    }
  }
}

void advance(const LightningBlock& block, int64_t n, float* S) {
  decay_keys(block, n);
  const SplitDecay decay = split_decay(block.slope, n);
  for (int64_t e = block.begin; e < block.end; e += kGroup) {
    advance_panel(block, n, decay, block.v + e * kTokens, S + e * block.dim);
  }
}

// Queries in the forms the products want, keys across; rows up to the next tile are zero.
HWY_INLINE void load_queries(const LightningBlock& block, const LightningQueries& x, int64_t n,
                             const ConstTensorView& q, int64_t begin, int64_t head) {
  const int64_t dim = block.dim;
  for (int64_t i = 0; i < n; ++i) {
    simd_load_run(q.data, q.dtype, offset_of(q, begin + i, head), q.stride[2], dim, x.q + i * dim);
    prefetch_token(q, begin + i + kTokens, head);
    scale_row(x.q + i * dim, x.scaled[i + 1], dim, x.q_decay + i * dim);
  }
  const auto pad = static_cast<size_t>((round_up(n, kPanelRows) - n) * dim) * sizeof(float);
  std::memset(x.q + n * dim, 0, pad);
  std::memset(x.q_decay + n * dim, 0, pad);
  const int64_t columns = round_up(n, kGroup);
  std::memset(block.k + n * dim, 0, static_cast<size_t>((columns - n) * dim) * sizeof(float));
  transpose(block.k, dim, columns, dim, x.kT, kTokens);
}

// A = causal part of Q K^T with decays. What lies above the diagonal is never used.
HWY_INLINE void block_scores(const LightningQueries& x, int64_t dim, int64_t n) {
  for (int64_t i = 0; i < n; i += kPanelRows) {
    for (int64_t j = 0; j < i + kPanelRows; j += kGroup) {
      PanelTile sum = panel_zero();
      panel_multiply({x.q + i * dim, dim, 1}, x.kT + j, kTokens, dim, sum);
      for (int r = 0; r < kPanelRows; ++r) {
        const float* decay = x.reverse + (kTokens - 1 - (i + r)) + j;
        group_store(x.A + (i + r) * kTokens + j, sum.at[r][0] * group_load(decay));
      }
    }
  }
}

// One panel of the outputs. Tokens before the tile are visible to all its rows, those inside it to
// some: a later token is left out, not multiplied by zero, because what it holds must not matter.
HWY_INLINE void output_panel(const LightningQueries& x, int64_t dim, int64_t n, const float* v,
                             const float* S, float* o) {
  for (int64_t i = 0; i < n; i += kPanelRows) {
    const float* A = x.A + i * kTokens;
    PanelTile sum = panel_zero();
    panel_multiply({x.q_decay + i * dim, dim, 1}, S, kGroup, dim, sum);
    panel_multiply({A, kTokens, 1}, v, kGroup, i, sum);
    panel_multiply_triangle({A + i, kTokens, 1}, v + i * kGroup, sum);
    for (int r = 0; r < kPanelRows; ++r) group_store(o + (i + r) * kGroup, sum.at[r][0]);
  }
}

void run(const LightningBlock& block, const LightningQueries& x, int64_t n,
         const ConstTensorView& q, const TensorView& out, int64_t begin, int64_t head, float* S) {
  const int64_t dim = block.dim;
  load_queries(block, x, n, q, begin, head);
  decay_keys(block, n);
  block_scores(x, dim, n);
  const SplitDecay decay = split_decay(block.slope, n);
  for (int64_t e = block.begin; e < block.end; e += kGroup) {
    const float* v = block.v + e * kTokens;
    output_panel(x, dim, n, v, S + e * dim, x.o + e * kTokens);
    advance_panel(block, n, decay, v, S + e * dim);
  }
  const int64_t columns = block.end - block.begin;
  HWY_ALIGN float row[kMostDim];
  for (int64_t i = 0; i < n; ++i) {
    panels_to_row(x.o + block.begin * kTokens, columns, kTokens, i, row);
    const int64_t first = offset_of(out, begin + i, head, block.begin);
    simd_store_run(out.data, out.dtype, first, out.stride[2], columns, row);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(load_state_panels);
HWY_EXPORT(store_state_panels);
HWY_EXPORT(load_kv);
HWY_EXPORT(advance);
HWY_EXPORT(run);

LightningBlock cut_lightning_block(Scratch& scratch, int64_t dim, float slope) {
  LightningBlock block;
  block.dim = dim;
  block.slope = slope;
  block.end = dim;
  block.k = scratch.take<float>(kLightningBlock * dim);
  block.k_decay = scratch.take<float>(kLightningBlock * dim);
  block.v = scratch.take<float>(kLightningBlock * dim);
  block.lambda = scratch.take<float>(kLightningBlock + 1);
  return block;
}

LightningQueries cut_lightning_queries(Scratch& scratch, int64_t dim) {
  LightningQueries x;
  x.q = scratch.take<float>(kLightningBlock * dim);
  x.q_decay = scratch.take<float>(kLightningBlock * dim);
  x.kT = scratch.take<float>(dim * kLightningBlock);
  x.A = scratch.take<float>(kLightningBlock * kLightningBlock);
  x.o = scratch.take<float>(kLightningBlock * dim);
  x.scaled = scratch.take<float>(kLightningBlock + 1);
  x.reverse = scratch.take<float>(2 * kLightningBlock);
  return x;
}

void fill_lambda(const LightningBlock& block, int64_t most) {
  for (int64_t m = 0; m <= most; ++m) {
    block.lambda[m] = static_cast<float>(decay_f64(block.slope, m));
  }
}

void fill_scaled(const LightningQueries& x, float scale, float slope, int64_t most) {
  for (int64_t m = 0; m <= most; ++m) {
    x.scaled[m] = static_cast<float>(static_cast<double>(scale) * decay_f64(slope, m));
  }
  std::memset(x.reverse, 0, 2 * kLightningBlock * sizeof(float));
  for (int64_t m = 0; m < min_i64(most + 1, kLightningBlock); ++m) {
    x.reverse[kLightningBlock - 1 - m] = x.scaled[m];
  }
}

int64_t next_block(int64_t start, int64_t done, int64_t tokens) {
  const int64_t to_border = kLightningBlock - (start + done) % kLightningBlock;
  return min_i64(to_border, tokens - done);
}

void load_block_token(const LightningBlock& block, int64_t i, const ConstTensorView& k,
                      const ConstTensorView& v, int64_t token, int64_t head) {
  HWY_DYNAMIC_DISPATCH(load_kv)(block, i, k, v, token, head);
}

void advance_block(const LightningBlock& block, int64_t n, float* S) {
  HWY_DYNAMIC_DISPATCH(advance)(block, n, S);
}

void run_block(const LightningBlock& block, const LightningQueries& queries, int64_t n,
               const ConstTensorView& q, const TensorView& out, int64_t begin, int64_t head,
               float* S) {
  HWY_DYNAMIC_DISPATCH(run)(block, queries, n, q, out, begin, head, S);
}

void load_panels(const TensorView& state, int64_t slot, int64_t head, bool fresh, int64_t begin,
                 int64_t end, float* S) {
  const int64_t dim = state.shape[2];
  if (fresh) {
    std::memset(S + begin * dim, 0, static_cast<size_t>((end - begin) * dim) * sizeof(float));
    return;
  }
  HWY_DYNAMIC_DISPATCH(load_state_panels)(state, slot, head, begin, end, S);
}

bool store_panels(const TensorView& state, int64_t slot, int64_t head, int64_t begin, int64_t end,
                  const float* S) {
  return HWY_DYNAMIC_DISPATCH(store_state_panels)(state, slot, head, begin, end, S);
}

}  // namespace linestate
#endif
