#include "base/device_status.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/common/snapshot_access.h"
#include "ops/lightning/decode/lightning_decode_kernels.h"
#include "ops/lightning/lightning_step_cpu.h"

namespace linestate {

int64_t lightning_decode_cpu_workspace_bytes(const LightningParams&, const ExecContext& context) {
  return thread_count(context) * lightning_step_scratch_bytes();
}

Status lightning_decode_cpu(const LightningParams& params, const ExecContext& context) {
  const int64_t heads = params.q.shape[1];
  const int64_t bytes = lightning_step_scratch_bytes();
  const int64_t tasks = params.rows.slot.shape[0] * heads;
  const int64_t elements = tasks * params.state.shape[2] * params.state.shape[3];
  parallel_for(threads_for(context, elements), tasks, [&](int64_t task, int thread) {
    const int64_t n = task / heads;
    const RowInfo row = read_decode_row(params.rows, n, params.state.shape[0]);
    lightning_step_cpu(params, context, row, n, task % heads,
                       thread_scratch(context, thread, bytes));
  });
  raise_decode_snapshots_not_taken(params.snapshots, params.rows, params.state.shape[0],
                                   context.status);
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
