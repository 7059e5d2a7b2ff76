// The way of a commit through paths, snapshots and windows. No maths: the caller applies tokens.
#pragma once

#include <cstdint>

#include "linestate/exec_context.h"
#include "linestate/ops/kda_verify.h"
#include "ops/common/snapshot_access.h"
#include "ops/draft_tree/accepted_path.h"
#include "ops/kda/kda_row_io.h"

namespace linestate {

inline AcceptedNodes accepted_nodes(const KdaCommitParams& p) {
  return {p.rows, p.parent, p.accepted_node, p.state.shape[0]};
}

/// Rounds S of row n into a slot; reports an overflow.
void store_committed(const KdaCommitParams& params, const ExecContext& context, int64_t n,
                     int64_t slot, int64_t j, const float* S);

/// The state of value head j of row n: apply(t, S) advances S [V, K] by packed token t.
template <typename Apply>
void commit_kda_head(const KdaCommitParams& p, const ExecContext& context, int64_t n, int64_t j,
                     float* S, const Apply& apply) {
  const AcceptedPath accepted = read_accepted_path(accepted_nodes(p), n);
  const int64_t length = accepted.path.length;
  if (length == 0) return;
  const RowSnapshots snapshots(p.snapshots, n, accepted.row, p.state.shape[0], length);
  int64_t next = snapshots.next(0);
  load_kda_state(p.state, accepted.row, j, S);
  for (int64_t done = 1; done <= length; ++done) {
    apply(accepted.token(done - 1), S);
    if (done != next) continue;
    snapshots.at(done, [&](int64_t, int64_t slot) { store_committed(p, context, n, slot, j, S); });
    next = snapshots.next(done);
  }
  store_committed(p, context, n, accepted.row.slot, j, S);
}

/// The convolution window of row n, all channels.
void commit_window(const KdaCommitParams& params, int64_t n);

}  // namespace linestate
