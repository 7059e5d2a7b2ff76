// Blocks of 32 tokens on the absolute grid of the sequence; the state is touched once a block
// (lightning_block.h).
#include <algorithm>

#include "base/device_status.h"
#include "base/int_math.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/common/snapshot_access.h"
#include "ops/lightning/lightning_access.h"
#include "ops/lightning/lightning_block.h"
#include "ops/lightning/prefill/lightning_prefill_kernels.h"

namespace linestate {
namespace {

constexpr int64_t kSliceColumns = 16;  // least of a slice

struct Buffers {
  LightningBlock block;
  LightningQueries queries;
  float* S;       // [K, V] in panels
  float* S_then;  // the same, a snapshot inside a block; only with a plan
};

Buffers cut(Scratch& scratch, int64_t dim, float slope, bool snapshots) {
  Buffers x;
  x.block = cut_lightning_block(scratch, dim, slope);
  x.queries = cut_lightning_queries(scratch, dim);
  x.S = scratch.take<float>(dim * dim);
  x.S_then = scratch.take<float>(snapshots ? dim * dim : 0);
  return x;
}

int64_t scratch_bytes(const LightningParams& params) {
  Scratch counter;
  cut(counter, params.q.shape[2], 0.0f, params.snapshots.defined());
  return counter.bytes();
}

// Columns [begin, end) of V of one head.
struct Head {
  int64_t index = 0;
  int64_t dim = 0;
  float slope = 0.0f;
  int64_t begin = 0;
  int64_t end = 0;
};

// Tasks that a head is cut into when there are too few heads to keep the threads busy. Scores are
// made by each of them; bits do not depend on the cut.
int64_t slices_of_head(int64_t heads, int64_t dim, int64_t threads) {
  if (heads % threads == 0 || heads >= 4 * threads) return 1;
  int64_t slices = 2;
  while (heads * slices < threads && 2 * slices * kSliceColumns <= dim) slices *= 2;
  return dim % (slices * kSliceColumns) == 0 ? slices : 1;
}

/// Where the states of one row and head go.
struct StateSink {
  const LightningParams& params;
  const ExecContext& context;
  int64_t row_index;
  Head head;

  void store(int64_t slot, const float* S) const {
    if (store_panels(params.state, slot, head.index, head.begin, head.end, S)) return;
    raise_overflow(context.status, static_cast<int32_t>(row_index), slot, params.layer);
  }
};

// States after 1 .. n tokens of the block that the plan wants; the row's own S is not touched.
void block_snapshots(const RowSnapshots& snapshots, int64_t done, int64_t n, const Buffers& x,
                     const StateSink& sink) {
  for (int64_t at = snapshots.next(done); at != RowSnapshots::kNone && at <= done + n;
       at = snapshots.next(at)) {
    std::copy(x.S + x.block.begin * x.block.dim, x.S + x.block.end * x.block.dim,
              x.S_then + x.block.begin * x.block.dim);
    advance_block(x.block, at - done, x.S_then);
    snapshots.at(at, [&](int64_t, int64_t slot) { sink.store(slot, x.S_then); });
  }
}

void run_head(const LightningParams& params, const ExecContext& context, const RowInfo& row,
              int64_t row_index, const Head& head, Scratch scratch) {
  if (head.begin == 0) {
    zero_tokens(params.out, head.index, row.token_begin + row.valid, row.token_begin + row.tokens);
  }
  if (row.valid == 0) {
    if (row.live && row.fresh && head.begin == 0) zero_state(params.state, row.slot, head.index);
    return;
  }

  Buffers x = cut(scratch, head.dim, head.slope, params.snapshots.defined());
  x.block.begin = head.begin;
  x.block.end = head.end;
  const int64_t most = min_i64(row.valid, kLightningBlock);
  fill_lambda(x.block, most);
  fill_scaled(x.queries, params.scale, head.slope, most);
  load_panels(params.state, row.slot, head.index, row.fresh, head.begin, head.end, x.S);
  const StateSink sink{params, context, row_index, head};
  const RowSnapshots snapshots(params.snapshots, row_index, row, params.state.shape[0], row.valid);
  for (int64_t done = 0; done < row.valid;) {
    const int64_t n = next_block(row.start, done, row.valid);
    const int64_t begin = row.token_begin + done;
    for (int64_t i = 0; i < n; ++i) {
      load_block_token(x.block, i, params.k, params.v, begin + i, head.index);
    }
    block_snapshots(snapshots, done, n, x, sink);
    run_block(x.block, x.queries, n, params.q, params.out, begin, head.index, x.S);
    done += n;
  }
  sink.store(row.slot, x.S);
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
  const int64_t num_heads = params.rows.slot.shape[0] * heads;  // of all rows
  const int64_t slices = slices_of_head(num_heads, dim, thread_count(context));
  parallel_for(context, num_heads * slices, [&](int64_t task, int thread) {
    const int64_t n = task / slices / heads;
    const int64_t h = task / slices % heads;
    const int64_t columns = dim / slices;
    const int64_t begin = task % slices * columns;
    const RowInfo row = read_prefill_row(params.rows, n, params.state.shape[0]);
    const float slope = load_f32(params.slopes.data, DType::kF32, offset_of(params.slopes, h));
    run_head(params, context, row, n, {h, dim, slope, begin, begin + columns},
             thread_scratch(context, thread, bytes));
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
