#include "ops/kda/commit/kda_commit_walk.h"

#include "base/device_status.h"
#include "ops/common/conv_window.h"

namespace linestate {

void store_committed(const KdaCommitParams& params, const ExecContext& context, int64_t n,
                     int64_t slot, int64_t j, const float* S) {
  if (store_kda_slot(params.state, slot, j, S)) return;
  raise_overflow(context.status, static_cast<int32_t>(n), slot, params.layer);
}

void commit_window(const KdaCommitParams& p, int64_t n) {
  if (!p.window.defined()) return;
  const AcceptedPath accepted = read_accepted_path(accepted_nodes(p), n);
  const RowInfo& row = accepted.row;
  const int64_t length = accepted.path.length;
  if (length == 0) return;
  const ChannelRange channels{0, p.window.shape[1]};
  const RowSnapshots snapshots(p.snapshots, n, row, p.state.shape[0], length);
  const auto token_at = [&](int64_t i) { return accepted.token(i); };
  for (int64_t at = snapshots.next(0); at != RowSnapshots::kNone; at = snapshots.next(at)) {
    snapshots.at(at, [&](int64_t, int64_t slot) {
      write_window(p.window, row.slot, slot, row.fresh, p.conv_x, at, channels, token_at);
    });
  }
  advance_window(p.window, row.slot, row.fresh, p.conv_x, length, channels, token_at);
}

}  // namespace linestate
