// One token of the recurrence of include/linestate/ops/kda.h for every row.
#include "base/device_status.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/common/snapshot_access.h"
#include "ops/kda/decode/kda_decode_head.h"
#include "ops/kda/decode/kda_decode_kernels.h"
#include "ops/kda/kda_row_io.h"

namespace linestate {

KdaRefDecodeScratch take_kda_ref_decode_scratch(const KdaParams& p, Scratch& scratch) {
  float* S = scratch.take<float>(p.state.shape[2] * p.state.shape[3]);
  return {S, take_kda_ref_token(p, scratch)};
}

void decode_kda_head_ref(const KdaParams& p, const ExecContext& context, int64_t n, int64_t j,
                         KdaRefDecodeScratch& scratch) {
  const int64_t V = p.state.shape[2];
  const int64_t K = p.state.shape[3];
  const RowInfo row = read_decode_row(p.rows, n, p.state.shape[0]);
  if (row.valid == 0) {
    clear_kda_out(p, n, n + 1, j);
    if (row.live && row.fresh) clear_kda_state(p.state, row, j);
    return;
  }
  load_kda_state(p.state, row, j, scratch.S);
  read_kda_ref_token(p, n, j, scratch.token);
  for (int64_t v = 0; v < V; ++v) {
    const double value = load_f32(p.v.data, p.v.dtype, offset_of(p.v, n, j, v));
    const double o = step_kda_ref_row(scratch.token, K, value, scratch.S + v * K);
    store_f32(p.out.data, p.out.dtype, offset_of(p.out, n, j, v), static_cast<float>(o));
  }
  store_kda_state(p, context, row, n, j, scratch.S);
  const RowSnapshots snapshots(p.snapshots, n, row, p.state.shape[0], row.valid);
  snapshots.at(1, [&](int64_t, int64_t slot) { copy_kda_slot(p.state, row.slot, slot, j); });
}

namespace {

int64_t scratch_bytes(const KdaParams& p) {
  Scratch count;
  take_kda_ref_decode_scratch(p, count);
  return count.bytes();
}

}  // namespace

int64_t kda_decode_ref_workspace(const KdaParams& params, const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status kda_decode_ref(const KdaParams& params, const ExecContext& context) {
  const int64_t HV = params.v.shape[1];
  const int64_t bytes = scratch_bytes(params);
  parallel_for(context, params.q.shape[0] * HV, [&](int64_t task, int thread) {
    Scratch scratch = thread_scratch(context, thread, bytes);
    KdaRefDecodeScratch head = take_kda_ref_decode_scratch(params, scratch);
    decode_kda_head_ref(params, context, task / HV, task % HV, head);
  });
  raise_decode_snapshots_not_taken(params.snapshots, params.rows, params.state.shape[0],
                                   context.status);
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
