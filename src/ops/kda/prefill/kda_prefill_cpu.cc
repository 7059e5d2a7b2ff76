// Prefill on the CPU: the rows and their heads; the maths is in kda_prefill_block.
#include <algorithm>

#include "base/device_status.h"
#include "base/int_math.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "ops/common/snapshot_access.h"
#include "ops/kda/kda_row_io.h"
#include "ops/kda/prefill/kda_prefill_block.h"
#include "ops/kda/prefill/kda_prefill_kernels.h"

namespace linestate {
namespace {

// Value head j of row n, and the columns of V that one task does.
struct Task {
  int64_t n;
  int64_t j;
  int64_t v_begin;
  int64_t v_end;
  bool leads() const { return v_begin == 0; }  // does what is done once a head
};

struct PrefillScratch {
  KdaBlock block;
  float* S;  // block.S while a snapshot is made inside a block; null without a plan
};

PrefillScratch take_scratch(const KdaParams& p, int64_t v_begin, int64_t v_end, Scratch& scratch) {
  const KdaBlock block = take_kda_block(p, v_begin, v_end, scratch);
  return {block, scratch.take<float>(p.snapshots.defined() ? block.state_size() : 0)};
}

int64_t scratch_bytes(const KdaParams& p) {
  Scratch count;
  take_scratch(p, 0, p.state.shape[2], count);
  return count.bytes();
}

void store_state(const KdaParams& p, const ExecContext& context, const Task& task, int64_t slot,
                 const KdaBlock& block) {
  if (store_kda_panels(p.state, slot, task.j, block)) return;
  raise_overflow(context.status, static_cast<int32_t>(task.n), slot, p.layer);
}

void take_snapshots(const KdaParams& p, const ExecContext& context, const RowSnapshots& snapshots,
                    const Task& task, int64_t tokens, const KdaBlock& block) {
  snapshots.at(tokens, [&](int64_t, int64_t slot) { store_state(p, context, task, slot, block); });
}

void prefill_head(const KdaParams& p, const ExecContext& context, const Task& task,
                  const PrefillScratch& scratch) {
  const RowInfo row = read_prefill_row(p.rows, task.n, p.state.shape[0]);
  if (task.leads()) {
    clear_kda_out(p, row.token_begin + row.valid, row.token_begin + row.tokens, task.j);
    if (row.live && row.valid == 0 && row.fresh) clear_kda_state(p.state, row, task.j);
  }
  if (row.valid == 0) return;
  const KdaBlock& block = scratch.block;
  const KdaGateHead head = read_kda_gate_head(p, task.j, block.dt_bias);
  const RowSnapshots snapshots(p.snapshots, task.n, row, p.state.shape[0], row.valid);
  int64_t next = snapshots.next(0);
  load_kda_panels(p.state, row.slot, row.fresh, task.j, block);
  const int64_t end = row.token_begin + row.valid;
  for (int64_t done = 0; done < row.valid;) {
    const int64_t t = row.token_begin + done;
    const int64_t to_border = kKdaBlock - (row.start + done) % kKdaBlock;
    const int64_t tokens = min_i64(to_border, row.valid - done);
    for (; next < done + tokens; next = snapshots.next(next)) {
      // The first tokens of the block alone, as a call that ends there computes them.
      std::copy(block.S, block.S + block.state_size(), scratch.S);
      run_kda_block(p, head, {t, next - done, task.j, end}, block);
      take_snapshots(p, context, snapshots, task, next, block);
      std::copy(scratch.S, scratch.S + block.state_size(), block.S);
    }
    run_kda_block(p, head, {t, tokens, task.j, end}, block);
    done += tokens;
    if (next != done) continue;
    take_snapshots(p, context, snapshots, task, next, block);
    next = snapshots.next(next);
  }
  store_state(p, context, task, row.slot, block);
}

// Into how many runs of panels a head is cut, so that few heads still occupy all threads. Every run
// makes the factors again, which is a fifth of the work: no more runs than threads need.
int64_t runs_per_head(const ExecContext& context, int64_t heads, int64_t panels) {
  const int64_t threads = thread_count(context);
  if (heads == 0 || heads >= threads) return 1;
  return min_i64(ceil_div(threads, heads), panels);
}

}  // namespace

int64_t kda_prefill_cpu_workspace(const KdaParams& params, const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status kda_prefill_cpu(const KdaParams& params, const ExecContext& context) {
  const int64_t HV = params.v.shape[1];
  const int64_t heads = params.rows.slot.shape[0] * HV;
  const int64_t panels = params.state.shape[2] / kKdaPanel;
  const int64_t runs = runs_per_head(context, heads, panels);
  const int64_t bytes = scratch_bytes(params);
  parallel_for(context, heads * runs, [&](int64_t index, int thread) {
    const int64_t run = index % runs;
    const int64_t j = index / runs % HV;
    const Task task{index / runs / HV, j, run * panels / runs * kKdaPanel,
                    (run + 1) * panels / runs * kKdaPanel};
    Scratch scratch = thread_scratch(context, thread, bytes);
    prefill_head(params, context, task, take_scratch(params, task.v_begin, task.v_end, scratch));
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
