// Prefill on the CPU: the rows and their heads; the maths is in kda_prefill_block.
#include <algorithm>

#include "base/device_status.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "ops/common/snapshot_access.h"
#include "ops/kda/kda_row_io.h"
#include "ops/kda/prefill/kda_prefill_block.h"
#include "ops/kda/prefill/kda_prefill_kernels.h"

namespace linestate {
namespace {

struct PrefillScratch {
  KdaBlock block;
  float* S;  // [V, K] the state while a snapshot is made inside a block; null without a plan
};

PrefillScratch take_scratch(const KdaParams& p, Scratch& scratch) {
  const KdaBlock block = take_kda_block(p, scratch);
  const int64_t saved = p.snapshots.defined() ? block.V * block.K : 0;
  return {block, scratch.take<float>(saved)};
}

int64_t scratch_bytes(const KdaParams& p) {
  Scratch count;
  take_scratch(p, count);
  return count.bytes();
}

void take_snapshots(const KdaParams& p, const ExecContext& context, const RowSnapshots& snapshots,
                    int64_t n, int64_t j, int64_t tokens, const float* S) {
  snapshots.at(tokens, [&](int64_t, int64_t slot) {
    if (store_kda_slot(p.state, slot, j, S)) return;
    raise_overflow(context.status, static_cast<int32_t>(n), slot, p.layer);
  });
}

void prefill_head(const KdaParams& p, const ExecContext& context, int64_t n, int64_t j,
                  PrefillScratch scratch) {
  const RowInfo row = read_prefill_row(p.rows, n, p.state.shape[0]);
  clear_kda_out(p, row.token_begin + row.valid, row.token_begin + row.tokens, j);
  if (!row.live) return;
  if (row.valid == 0) {
    if (row.fresh) clear_kda_state(p.state, row, j);
    return;
  }
  KdaBlock& block = scratch.block;
  const KdaGateHead head = read_kda_gate_head(p, j, block.dt_bias);
  const RowSnapshots snapshots(p.snapshots, n, row, p.state.shape[0], row.valid);
  int64_t next = snapshots.next(0);
  load_kda_state(p.state, row, j, block.S);
  for (int64_t done = 0; done < row.valid;) {
    const int64_t t = row.token_begin + done;
    const int64_t to_border = kKdaBlock - (row.start + done) % kKdaBlock;
    const int64_t tokens = min_i64(to_border, row.valid - done);
    for (; next < done + tokens; next = snapshots.next(next)) {
      // The first tokens of the block alone, as a call that ends there computes them.
      std::copy(block.S, block.S + block.V * block.K, scratch.S);
      run_kda_block(p, head, t, next - done, j, block);
      take_snapshots(p, context, snapshots, n, j, next, block.S);
      std::copy(scratch.S, scratch.S + block.V * block.K, block.S);
    }
    run_kda_block(p, head, t, tokens, j, block);
    for (int64_t i = 0; i < tokens; ++i) {
      store_run(p.out.data, p.out.dtype, offset_of(p.out, t + i, j), p.out.stride[2], block.V,
                block.Y + (kKdaBlock + i) * block.V);
    }
    done += tokens;
    if (next != done) continue;
    take_snapshots(p, context, snapshots, n, j, next, block.S);
    next = snapshots.next(next);
  }
  store_kda_state(p, context, row, n, j, block.S);
}

}  // namespace

int64_t kda_prefill_cpu_workspace(const KdaParams& params, const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status kda_prefill_cpu(const KdaParams& params, const ExecContext& context) {
  const int64_t HV = params.v.shape[1];
  const int64_t tasks = params.rows.slot.shape[0] * HV;
  const int64_t bytes = scratch_bytes(params);
  parallel_for(context, tasks, [&](int64_t task, int thread) {
    Scratch scratch = thread_scratch(context, thread, bytes);
    prefill_head(params, context, task / HV, task % HV, take_scratch(params, scratch));
  });
  for (int64_t j = 0; j < HV; ++j) {
    clear_kda_out(params, end_of_rows(params.rows), params.q.shape[0], j);
  }
  raise_prefill_snapshots_not_taken(params.snapshots, params.rows, params.state.shape[0],
                                    context.status);
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
