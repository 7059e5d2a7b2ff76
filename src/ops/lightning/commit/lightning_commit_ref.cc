#include "base/device_status.h"
#include "cpu/parallel_for.h"
#include "ops/common/snapshot_access.h"
#include "ops/draft_tree/accepted_path.h"
#include "ops/lightning/commit/lightning_commit_kernels.h"
#include "ops/lightning/lightning_access.h"
#include "ops/lightning/lightning_ref.h"

namespace linestate {
namespace {

// The same steps as decode of the accepted tokens, without outputs.
void commit_head(const LightningCommitParams& params, const ExecContext& context,
                 const AcceptedPath& accepted, int64_t n, int64_t head, Scratch scratch) {
  const RowInfo& row = accepted.row;
  const int64_t dim = params.record.k.shape[2];
  const LightningRefHead x = cut_lightning_ref_head(scratch, dim);
  const double lambda = lightning_ref_lambda(params.slopes, head);
  const RowSnapshots snapshots(params.snapshots, n, row, params.state.shape[0],
                               accepted.path.length);
  const auto store = [&](int64_t slot) {
    if (store_state(params.state, slot, head, x.S)) return;
    raise_overflow(context.status, static_cast<int32_t>(n), slot, params.layer);
  };
  load_state(params.state, row.slot, head, row.fresh, x.S);
  for (int64_t i = 0; i < accepted.path.length; ++i) {
    load_token(params.record.k, accepted.token(i), head, x.k);
    load_token(params.record.v, accepted.token(i), head, x.v);
    lightning_ref_update(x, dim, lambda);
    snapshots.at(i + 1, [&](int64_t, int64_t slot) { store(slot); });
  }
  store(row.slot);
}

}  // namespace

int64_t lightning_commit_ref_workspace_bytes(const LightningCommitParams& params,
                                             const ExecContext& context) {
  return thread_count(context) * lightning_ref_scratch_bytes(params.record.k.shape[2]);
}

Status lightning_commit_ref(const LightningCommitParams& params, const ExecContext& context) {
  const int64_t heads = params.record.k.shape[1];
  const int64_t scratch_bytes = lightning_ref_scratch_bytes(params.record.k.shape[2]);
  const AcceptedNodes nodes{params.rows, params.parent, params.accepted_node,
                            params.state.shape[0]};
  parallel_for(context, params.rows.slot.shape[0] * heads, [&](int64_t task, int thread) {
    const int64_t n = task / heads;
    const AcceptedPath accepted = read_accepted_path(nodes, n);
    if (accepted.path.length == 0) return;
    commit_head(params, context, accepted, n, task % heads,
                thread_scratch(context, thread, scratch_bytes));
  });
  report_commit_snapshots(nodes, params.snapshots, params.taken, context.status);
  return {};
}

}  // namespace linestate
