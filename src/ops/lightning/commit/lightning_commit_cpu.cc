// The records along the accepted path advance the state in the blocks that prefill would use for
// these tokens, so that committing a chain gives the state bits of prefill.
#include <algorithm>

#include "base/device_status.h"
#include "base/int_math.h"
#include "cpu/parallel_for.h"
#include "ops/common/snapshot_access.h"
#include "ops/draft_tree/accepted_path.h"
#include "ops/lightning/commit/lightning_commit_kernels.h"
#include "ops/lightning/lightning_block.h"

namespace linestate {
namespace {

struct Buffers {
  LightningBlock block;
  float* S;       // [K, V] in panels
  float* S_then;  // the same, a snapshot inside a block; only with a plan
};

Buffers cut(Scratch& scratch, int64_t dim, float slope, bool snapshots) {
  Buffers x;
  x.block = cut_lightning_block(scratch, dim, slope);
  x.S = scratch.take<float>(dim * dim);
  x.S_then = scratch.take<float>(snapshots ? dim * dim : 0);
  return x;
}

int64_t scratch_bytes(const LightningCommitParams& params) {
  Scratch counter;
  cut(counter, params.record.k.shape[2], 0.0f, params.snapshots.defined());
  return counter.bytes();
}

void commit_head(const LightningCommitParams& params, const ExecContext& context,
                 const AcceptedPath& accepted, int64_t n, int64_t head, Scratch scratch) {
  const RowInfo& row = accepted.row;
  const int64_t tokens = accepted.path.length;
  const int64_t dim = params.record.k.shape[2];
  const float slope = load_f32(params.slopes.data, DType::kF32, offset_of(params.slopes, head));
  const Buffers x = cut(scratch, dim, slope, params.snapshots.defined());
  const auto store = [&](int64_t slot, const float* S) {
    if (store_panels(params.state, slot, head, 0, dim, S)) return;
    raise_overflow(context.status, static_cast<int32_t>(n), slot, params.layer);
  };
  fill_lambda(x.block, min_i64(tokens, kLightningBlock));
  load_panels(params.state, row.slot, head, row.fresh, 0, dim, x.S);
  const RowSnapshots snapshots(params.snapshots, n, row, params.state.shape[0], tokens);
  for (int64_t done = 0; done < tokens;) {
    const int64_t block = next_block(row.start, done, tokens);
    for (int64_t i = 0; i < block; ++i) {
      load_block_token(x.block, i, params.record.k, params.record.v, accepted.token(done + i),
                       head);
    }
    for (int64_t at = snapshots.next(done); at != RowSnapshots::kNone && at <= done + block;
         at = snapshots.next(at)) {
      std::copy(x.S, x.S + dim * dim, x.S_then);
      advance_block(x.block, at - done, x.S_then);
      snapshots.at(at, [&](int64_t, int64_t slot) { store(slot, x.S_then); });
    }
    advance_block(x.block, block, x.S);
    done += block;
  }
  store(row.slot, x.S);
}

}  // namespace

int64_t lightning_commit_cpu_workspace_bytes(const LightningCommitParams& params,
                                             const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status lightning_commit_cpu(const LightningCommitParams& params, const ExecContext& context) {
  const int64_t heads = params.record.k.shape[1];
  const int64_t bytes = scratch_bytes(params);
  const AcceptedNodes nodes{params.rows, params.parent, params.accepted_node,
                            params.state.shape[0]};
  parallel_for(context, params.rows.slot.shape[0] * heads, [&](int64_t task, int thread) {
    const int64_t n = task / heads;
    const AcceptedPath accepted = read_accepted_path(nodes, n);
    if (accepted.path.length == 0) return;
    commit_head(params, context, accepted, n, task % heads, thread_scratch(context, thread, bytes));
  });
  report_commit_snapshots(nodes, params.snapshots, params.taken, context.status);
  return {};
}

}  // namespace linestate
