#include "ops/draft_tree/accepted_path.h"

#include "base/check.h"
#include "ops/common/snapshot_access.h"

namespace linestate {

AcceptedPath read_accepted_path(const AcceptedNodes& nodes, int64_t n) {
  AcceptedPath accepted;
  accepted.row = read_prefill_row(nodes.rows, n, nodes.num_slots);
  const int64_t node = accepted.row.live ? load_index(nodes.accepted_node, n) : -1;
  if (node >= 0) accepted.path = DraftTree(nodes.parent, accepted.row).path_to(node);
  return accepted;
}

Status check_taken(const TensorView& taken, const SnapshotPlan& plan, const ExecContext& context) {
  if (!taken.defined()) return {};
  const int64_t entries = plan.defined() ? plan.row.shape[0] : 0;
  LINESTATE_RETURN_IF_ERROR(check_shape("taken", taken, {entries}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("taken", taken, {DType::kU8}));
  LINESTATE_RETURN_IF_ERROR(check_placement("taken", taken, context));
  LINESTATE_RETURN_IF_ERROR(check_no_self_overlap("taken", taken));
  return check_snapshots_apart(plan, "taken", taken);
}

void report_commit_snapshots(const AcceptedNodes& nodes, const SnapshotPlan& plan,
                             const TensorView& taken, DeviceStatus* status) {
  if (!plan.defined()) return;
  for (int64_t n = 0; n < nodes.rows.slot.shape[0]; ++n) {
    const AcceptedPath accepted = read_accepted_path(nodes, n);
    const RowSnapshots snapshots(plan, n, accepted.row, nodes.num_slots, accepted.path.length);
    for (int64_t m = 0; taken.defined() && m < plan.row.shape[0]; ++m) {
      if (load_index(plan.row, m) != n) continue;
      const bool done = snapshots.taken_after(m) != RowSnapshots::kNone;
      static_cast<uint8_t*>(taken.data)[m * taken.stride[0]] = done ? 1 : 0;
    }
    raise_snapshots_not_taken(plan, n, accepted.row, nodes.num_slots, accepted.path.length, status);
  }
}

}  // namespace linestate
