// Decode on the CPU: the state is read once and written once, one V row at a time.
#include "base/device_status.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/common/snapshot_access.h"
#include "ops/kda/decode/kda_decode_head.h"
#include "ops/kda/decode/kda_decode_kernels.h"
#include "ops/kda/kda_row_io.h"
#include "ops/kda/kda_row_step.h"

namespace linestate {

KdaDecodeScratch take_kda_decode_scratch(const KdaParams& p, Scratch& scratch) {
  const int64_t K = p.state.shape[3];
  const int64_t V = p.state.shape[2];
  KdaDecodeScratch out;
  out.dt_bias = scratch.take<float>(K);
  out.token = {scratch.take<float>(K), scratch.take<float>(K), scratch.take<float>(K),
               scratch.take<float>(V)};
  out.s = scratch.take<float>(K);
  out.o = scratch.take<float>(V);
  return out;
}

void decode_kda_head_cpu(const KdaParams& p, const ExecContext& context, int64_t n, int64_t j,
                         KdaDecodeScratch& scratch) {
  const TensorView& state = p.state;
  const int64_t V = state.shape[2];
  const int64_t K = state.shape[3];
  const RowInfo row = read_decode_row(p.rows, n, state.shape[0]);
  if (row.valid == 0) {
    clear_kda_out(p, n, n + 1, j);
    if (row.live && row.fresh) clear_kda_state(p.state, row, j);
    return;
  }
  KdaHeadToken& token = scratch.token;
  read_kda_head_token(p, read_kda_gate_head(p, j, scratch.dt_bias), n, j, token);
  bool fits = true;
  for (int64_t v = 0; v < V; ++v) {
    const int64_t at = offset_of(state, row.slot, j, v);
    float* s = scratch.s;
    if (row.fresh) {
      for (int64_t k = 0; k < K; ++k) s[k] = 0.0f;
    } else {
      load_run(state.data, state.dtype, at, state.stride[3], K, s);
    }
    const float u = token.beta * (token.v[v] - kda_decay_and_predict(token.alpha, token.k, K, s));
    scratch.o[v] = kda_update_and_read(token.k, token.q, u, K, s);
    fits &= store_run(state.data, state.dtype, at, state.stride[3], K, s);
  }
  store_run(p.out.data, p.out.dtype, offset_of(p.out, n, j), p.out.stride[2], V, scratch.o);
  if (!fits) raise_overflow(context.status, static_cast<int32_t>(n), row.slot, p.layer);
  const RowSnapshots snapshots(p.snapshots, n, row, p.state.shape[0], row.valid);
  snapshots.at(1, [&](int64_t, int64_t slot) { copy_kda_slot(p.state, row.slot, slot, j); });
}

namespace {

int64_t scratch_bytes(const KdaParams& p) {
  Scratch count;
  take_kda_decode_scratch(p, count);
  return count.bytes();
}

}  // namespace

int64_t kda_decode_cpu_workspace(const KdaParams& params, const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status kda_decode_cpu(const KdaParams& params, const ExecContext& context) {
  const int64_t HV = params.v.shape[1];
  const int64_t bytes = scratch_bytes(params);
  const int64_t heads = params.q.shape[0] * HV;
  const int64_t elements = heads * params.state.shape[2] * params.state.shape[3];
  parallel_for(threads_for(context, elements), heads, [&](int64_t task, int thread) {
    Scratch scratch = thread_scratch(context, thread, bytes);
    KdaDecodeScratch head = take_kda_decode_scratch(params, scratch);
    decode_kda_head_cpu(params, context, task / HV, task % HV, head);
  });
  raise_decode_snapshots_not_taken(params.snapshots, params.rows, params.state.shape[0],
                                   context.status);
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
