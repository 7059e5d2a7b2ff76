#include "base/device_status.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/common/snapshot_access.h"
#include "ops/lightning/decode/lightning_decode_kernels.h"
#include "ops/lightning/lightning_ref.h"

namespace linestate {

int64_t lightning_decode_ref_workspace_bytes(const LightningParams& params,
                                             const ExecContext& context) {
  return thread_count(context) * lightning_ref_scratch_bytes(params.q.shape[2]);
}

Status lightning_decode_ref(const LightningParams& params, const ExecContext& context) {
  const int64_t heads = params.q.shape[1];
  const int64_t scratch_bytes = lightning_ref_scratch_bytes(params.q.shape[2]);
  parallel_for(context, params.rows.slot.shape[0] * heads, [&](int64_t task, int thread) {
    const int64_t n = task / heads;
    const RowInfo row = read_decode_row(params.rows, n, params.state.shape[0]);
    lightning_ref_head(params, context, row, n, task % heads,
                       thread_scratch(context, thread, scratch_bytes));
  });
  raise_decode_snapshots_not_taken(params.snapshots, params.rows, params.state.shape[0],
                                   context.status);
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
