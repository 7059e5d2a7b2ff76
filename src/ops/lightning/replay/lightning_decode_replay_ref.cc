// The pending records are replayed on a copy of the checkpoint, one after the other, and then the
// token as in decode. With an f32 ring and pool these are the very steps of plain decode.
#include "base/device_status.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "ops/lightning/lightning_access.h"
#include "ops/lightning/lightning_ref.h"
#include "ops/lightning/lightning_ring.h"
#include "ops/lightning/replay/lightning_decode_replay_kernels.h"

namespace linestate {
namespace {

void replay_head(const LightningReplayParams& replay, const ExecContext& context,
                 const RowInfo& row, int64_t n, int64_t head, Scratch scratch) {
  const LightningParams& params = replay.lightning;
  if (row.valid == 0) {
    zero_tokens(params.out, head, n, n + 1);
    if (row.live && row.fresh) zero_state(params.state, row.slot, head);
    return;
  }
  const int64_t dim = params.q.shape[2];
  const int64_t pending = load_index(replay.pending, n);
  const LightningRefHead x = cut_lightning_ref_head(scratch, dim);
  const double lambda = lightning_ref_lambda(params.slopes, head);
  load_state(params.state, row.slot, head, row.fresh, x.S);
  for (int64_t j = 0; j < pending; ++j) {
    load_record(replay.ring.keys, row.slot, head, j, x.k);
    load_record(replay.ring.values, row.slot, head, j, x.v);
    lightning_ref_update(x, dim, lambda);
  }
  load_token(params.q, n, head, x.q);
  load_token(params.k, n, head, x.k);
  load_token(params.v, n, head, x.v);
  lightning_ref_update(x, dim, lambda);
  lightning_ref_output(x, dim, static_cast<double>(params.scale));
  store_token(params.out, n, head, x.o);
  bool fits = true;
  if (load_flag(replay.flush, n)) {
    fits = store_state(params.state, row.slot, head, x.S);
  } else {
    if (row.fresh) zero_state(params.state, row.slot, head);
    fits = store_record(replay.ring.keys, row.slot, head, pending, x.k);
    fits &= store_record(replay.ring.values, row.slot, head, pending, x.v);
  }
  if (!fits) raise_overflow(context.status, static_cast<int32_t>(n), row.slot, params.layer);
}

}  // namespace

int64_t lightning_decode_replay_ref_workspace_bytes(const LightningReplayParams& params,
                                                    const ExecContext& context) {
  return thread_count(context) * lightning_ref_scratch_bytes(params.lightning.q.shape[2]);
}

Status lightning_decode_replay_ref(const LightningReplayParams& replay,
                                   const ExecContext& context) {
  const LightningParams& params = replay.lightning;
  const int64_t heads = params.q.shape[1];
  const int64_t bytes = lightning_ref_scratch_bytes(params.q.shape[2]);
  parallel_for(context, params.rows.slot.shape[0] * heads, [&](int64_t task, int thread) {
    const int64_t n = task / heads;
    const RowInfo row = read_decode_row(params.rows, n, params.state.shape[0]);
    replay_head(replay, context, row, n, task % heads, thread_scratch(context, thread, bytes));
  });
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
