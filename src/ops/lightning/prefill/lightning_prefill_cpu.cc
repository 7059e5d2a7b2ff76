// Blocks of 32 tokens on the absolute grid of the sequence; the state is touched once a block
// (lightning_block.h). With i, j counted inside a block and S0 the state before it:
//   o_i = scale * (lambda^(i+1) S0^T q_i + sum_{j<=i} lambda^(i-j) (q_i . k_j) v_j)
#include <algorithm>

#include "base/device_status.h"
#include "base/int_math.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "cpu/small_matmul.h"
#include "ops/common/snapshot_access.h"
#include "ops/lightning/lightning_access.h"
#include "ops/lightning/lightning_block.h"
#include "ops/lightning/lightning_decay.h"
#include "ops/lightning/prefill/lightning_prefill_kernels.h"

namespace linestate {
namespace {

constexpr int64_t kBlock = kLightningBlock;
constexpr int64_t kRowTile = 4;  // rows small_matmul works on at a time

struct Buffers {
  LightningBlock block;
  float* q;        // [kBlock, D]
  float* q_decay;  // [kBlock, D], q_i * scale * lambda^(i+1)
  float* k;        // [D]
  float* A;        // [kBlock, kBlock], scale * lambda^(i-j) (q_i . k_j)
  float* o;        // [kBlock, D]
  float* S;        // [K, V], used when the pool is not dense f32
  float* scaled;   // [kBlock + 1], scale * lambda^m
  float* S_then;   // [K, V], a snapshot inside a block; only with a plan
};

Buffers cut(Scratch& scratch, int64_t dim, float slope, bool snapshots) {
  Buffers x;
  x.block = cut_lightning_block(scratch, dim, slope);
  x.q = scratch.take<float>(kBlock * dim);
  x.q_decay = scratch.take<float>(kBlock * dim);
  x.k = scratch.take<float>(dim);
  x.A = scratch.take<float>(kBlock * kBlock);
  x.o = scratch.take<float>(kBlock * dim);
  x.S = scratch.take<float>(dim * dim);
  x.scaled = scratch.take<float>(kBlock + 1);
  x.S_then = scratch.take<float>(snapshots ? dim * dim : 0);
  return x;
}

int64_t scratch_bytes(const LightningParams& params) {
  Scratch counter;
  cut(counter, params.q.shape[2], 0.0f, params.snapshots.defined());
  return counter.bytes();
}

struct Head {
  int64_t index = 0;
  int64_t dim = 0;
  float slope = 0.0f;
};

void fill_powers(const Buffers& x, const Head& head, float scale, int64_t most) {
  fill_lambda(x.block, most);
  for (int64_t m = 0; m <= most; ++m) {
    x.scaled[m] = static_cast<float>(static_cast<double>(scale) * decay_f64(head.slope, m));
  }
}

// Tokens [begin, begin + n) in the forms the products want; rows up to the next tile are zero.
void load_block(const LightningParams& params, const Head& head, int64_t begin, int64_t n,
                const Buffers& x) {
  const int64_t dim = head.dim;
  float* kT = x.block.kT;
  std::fill(kT, kT + dim * kBlock, 0.0f);
  for (int64_t i = 0; i < n; ++i) {
    load_token(params.q, begin + i, head.index, x.q + i * dim);
    load_token(params.k, begin + i, head.index, x.k);
    load_token(params.v, begin + i, head.index, x.block.v + i * dim);
    const float decay_q = x.scaled[i + 1];
    for (int64_t d = 0; d < dim; ++d) {
      x.q_decay[i * dim + d] = x.q[i * dim + d] * decay_q;
      kT[d * kBlock + i] = x.k[d];
    }
  }
  const int64_t padded = round_up(n, kRowTile);
  std::fill(x.q + n * dim, x.q + padded * dim, 0.0f);
  std::fill(x.q_decay + n * dim, x.q_decay + padded * dim, 0.0f);
}

// A = causal part of Q K^T with decays. Entries above the diagonal are dropped, not multiplied by
// zero: what a later token holds must not reach an earlier one.
void block_scores(const Head& head, int64_t n, const Buffers& x) {
  constexpr int64_t kHalf = kBlock / 2;  // rows of the first half need no columns of the second
  std::fill(x.A, x.A + round_up(n, kRowTile) * kBlock, 0.0f);
  SmallMatmul op{x.q, x.block.kT, x.A, head.dim, kBlock, kBlock};
  op.m = round_up(min_i64(n, kHalf), kRowTile);
  op.n = kHalf;
  op.k = head.dim;
  small_matmul(op);
  if (n > kHalf) {
    op.a = x.q + kHalf * head.dim;
    op.c = x.A + kHalf * kBlock;
    op.m = round_up(n - kHalf, kRowTile);
    op.n = kBlock;
    small_matmul(op);
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) x.A[i * kBlock + j] *= x.scaled[i - j];
  }
}

void block_output(const Head& head, int64_t n, const float* S, const Buffers& x) {
  const int64_t dim = head.dim;
  std::fill(x.o, x.o + round_up(n, kRowTile) * dim, 0.0f);
  small_matmul({x.q_decay, S, x.o, dim, dim, dim, round_up(n, kRowTile), dim, dim});
  for (int64_t tile = 0; tile < n; tile += kRowTile) {
    // Columns before the tile are visible to all its rows, those inside it to some.
    if (tile > 0)
      small_matmul({x.A + tile * kBlock, x.block.v, x.o + tile * dim, kBlock, dim, dim, kRowTile,
                    dim, tile});
    for (int64_t i = tile; i < min_i64(tile + kRowTile, n); ++i) {
      float* __restrict o = x.o + i * dim;
      for (int64_t j = tile; j <= i; ++j) {
        const float a = x.A[i * kBlock + j];
        const float* __restrict v = x.block.v + j * dim;
        for (int64_t d = 0; d < dim; ++d) o[d] += a * v[d];
      }
    }
  }
}

/// Where the states of one row and head go.
struct StateSink {
  const LightningParams& params;
  const ExecContext& context;
  int64_t row_index;
  int64_t head;

  void store(int64_t slot, const float* S) const {
    if (store_state(params.state, slot, head, S)) return;
    raise_overflow(context.status, static_cast<int32_t>(row_index), slot, params.layer);
  }
};

// States after 1 .. n tokens of the block that the plan wants; the row's own S is not touched.
void block_snapshots(const RowSnapshots& snapshots, int64_t done, int64_t n, const float* S,
                     const Buffers& x, const StateSink& sink) {
  for (int64_t at = snapshots.next(done); at != RowSnapshots::kNone && at <= done + n;
       at = snapshots.next(at)) {
    std::copy(S, S + x.block.dim * x.block.dim, x.S_then);
    advance_block(x.block, at - done, x.S_then);
    snapshots.at(at, [&](int64_t, int64_t slot) { sink.store(slot, x.S_then); });
  }
}

void run_head(const LightningParams& params, const ExecContext& context, const RowInfo& row,
              int64_t row_index, const Head& head, Scratch scratch) {
  zero_tokens(params.out, head.index, row.token_begin + row.valid, row.token_begin + row.tokens);
  if (row.valid == 0) {
    if (row.live && row.fresh) zero_state(params.state, row.slot, head.index);
    return;
  }

  const Buffers x = cut(scratch, head.dim, head.slope, params.snapshots.defined());
  fill_powers(x, head, params.scale, min_i64(row.valid, kBlock));
  float* in_place = direct_state(params.state, row.slot, head.index);
  float* S = in_place != nullptr ? in_place : x.S;
  if (in_place == nullptr || row.fresh) {
    load_state(params.state, row.slot, head.index, row.fresh, S);
  }
  const StateSink sink{params, context, row_index, head.index};
  const RowSnapshots snapshots(params.snapshots, row_index, row, params.state.shape[0], row.valid);
  for (int64_t done = 0; done < row.valid;) {
    const int64_t n = next_block(row.start, done, row.valid);
    const int64_t begin = row.token_begin + done;
    load_block(params, head, begin, n, x);
    block_scores(head, n, x);
    block_output(head, n, S, x);
    block_snapshots(snapshots, done, n, S, x, sink);
    advance_block(x.block, n, S);
    for (int64_t i = 0; i < n; ++i) {
      store_token(params.out, begin + i, head.index, x.o + i * head.dim);
    }
    done += n;
  }
  if (in_place == nullptr) sink.store(row.slot, S);
}

}  // namespace

int64_t lightning_prefill_cpu_workspace_bytes(const LightningParams& params,
                                              const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status lightning_prefill_cpu(const LightningParams& params, const ExecContext& context) {
  const int64_t heads = params.q.shape[1];
  const int64_t dim = params.q.shape[2];
  const int64_t bytes = scratch_bytes(params);
  parallel_for(context, params.rows.slot.shape[0] * heads, [&](int64_t task, int thread) {
    const int64_t n = task / heads;
    const int64_t h = task % heads;
    const RowInfo row = read_prefill_row(params.rows, n, params.state.shape[0]);
    const float slope = load_f32(params.slopes.data, DType::kF32, offset_of(params.slopes, h));
    run_head(params, context, row, n, {h, dim, slope}, thread_scratch(context, thread, bytes));
  });
  for (int64_t h = 0; h < heads; ++h) {
    zero_tokens(params.out, h, end_of_rows(params.rows), params.out.shape[0]);
  }
  raise_prefill_snapshots_not_taken(params.snapshots, params.rows, params.state.shape[0],
                                    context.status);
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
