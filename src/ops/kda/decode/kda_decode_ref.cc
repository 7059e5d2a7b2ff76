// One token of the recurrence of include/linestate/ops/kda.h for every row.
#include "base/device_status.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/kda/decode/kda_decode_kernels.h"
#include "ops/kda/kda_ref_step.h"
#include "ops/kda/kda_row_io.h"

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

void decode_head(const KdaParams& p, const ExecContext& context, int64_t n, int64_t j,
                 RefScratch scratch) {
  const int64_t V = p.state.shape[2];
  const int64_t K = p.state.shape[3];
  const RowInfo row = read_decode_row(p.rows, n, p.state.shape[0]);
  if (row.valid == 0) {
    clear_kda_out(p, n, n + 1, j);
    if (row.live && row.fresh) clear_kda_state(p, row, j);
    return;
  }
  load_kda_state(p, row, j, scratch.S);
  read_kda_ref_token(p, n, j, scratch.token);
  for (int64_t v = 0; v < V; ++v) {
    const double value = load_f32(p.v.data, p.v.dtype, offset_of(p.v, n, j, v));
    const double o = step_kda_ref_row(scratch.token, K, value, scratch.S + v * K);
    store_f32(p.out.data, p.out.dtype, offset_of(p.out, n, j, v), static_cast<float>(o));
  }
  store_kda_state(p, context, row, n, j, scratch.S);
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
    decode_head(params, context, task / HV, task % HV, take_scratch(params, scratch));
  });
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
