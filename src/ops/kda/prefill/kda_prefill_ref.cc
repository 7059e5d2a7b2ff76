// The recurrence of include/linestate/ops/kda.h, token by token.
#include "base/device_status.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/common/snapshot_access.h"
#include "ops/kda/kda_ref_step.h"
#include "ops/kda/kda_row_io.h"
#include "ops/kda/prefill/kda_prefill_kernels.h"

namespace linestate {
namespace {

struct RefScratch {
  float* S;  // [V, K]
  KdaRefToken token;
};

RefScratch take_scratch(const KdaParams& p, Scratch& scratch) {
  float* S = scratch.take<float>(p.state.shape[2] * p.state.shape[3]);
  return {S, take_kda_ref_token(p, scratch)};
}

int64_t scratch_bytes(const KdaParams& p) {
  Scratch count;
  take_scratch(p, count);
  return count.bytes();
}

void prefill_head(const KdaParams& p, const ExecContext& context, int64_t n, int64_t j,
                  RefScratch scratch) {
  const int64_t V = p.state.shape[2];
  const int64_t K = p.state.shape[3];
  const RowInfo row = read_prefill_row(p.rows, n, p.state.shape[0]);
  clear_kda_out(p, row.token_begin + row.valid, row.token_begin + row.tokens, j);
  if (!row.live) return;
  if (row.valid == 0) {
    if (row.fresh) clear_kda_state(p.state, row, j);
    return;
  }
  load_kda_state(p.state, row, j, scratch.S);
  const RowSnapshots snapshots(p.snapshots, n, row, p.state.shape[0], row.valid);
  for (int64_t t = row.token_begin; t < row.token_begin + row.valid; ++t) {
    read_kda_ref_token(p, t, j, scratch.token);
    for (int64_t v = 0; v < V; ++v) {
      const double value = load_f32(p.v.data, p.v.dtype, offset_of(p.v, t, j, v));
      const double o = step_kda_ref_row(scratch.token, K, value, scratch.S + v * K);
      store_f32(p.out.data, p.out.dtype, offset_of(p.out, t, j, v), static_cast<float>(o));
    }
    snapshots.at(t + 1 - row.token_begin, [&](int64_t, int64_t slot) {
      if (store_kda_slot(p.state, slot, j, scratch.S)) return;
      raise_overflow(context.status, static_cast<int32_t>(n), slot, p.layer);
    });
  }
  store_kda_state(p, context, row, n, j, scratch.S);
}

}  // namespace

int64_t kda_prefill_ref_workspace(const KdaParams& params, const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status kda_prefill_ref(const KdaParams& params, const ExecContext& context) {
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
