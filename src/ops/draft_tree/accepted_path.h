// What commit does of a row whatever its attention: the accepted path and the fate of snapshots.
#pragma once

#include <cstdint>

#include "linestate/exec_context.h"
#include "linestate/rows.h"
#include "ops/draft_tree/draft_path.h"

namespace linestate {

/// The tensors that name the accepted nodes of a call.
struct AcceptedNodes {
  const RowTensors& rows;
  const ConstTensorView& parent;
  const ConstTensorView& accepted_node;
  int64_t num_slots;
};

struct AcceptedPath {
  RowInfo row;
  DraftPath path;  // of length 0 when the row commits nothing

  /// Packed token of the path's i-th node, the root being 0.
  int64_t token(int64_t i) const { return row.token_begin + path.node[static_cast<size_t>(i)]; }
};

/// REQUIRES: check_accepted_nodes passed.
AcceptedPath read_accepted_path(const AcceptedNodes& nodes, int64_t n);

/// `taken` of a commit: undefined, or [M] u8 for a plan of M entries.
Status check_taken(const TensorView& taken, const SnapshotPlan& plan, const ExecContext& context);

/// Fills `taken` where it is defined, and raises kSnapshotNotTaken as for any call.
void report_commit_snapshots(const AcceptedNodes& nodes, const SnapshotPlan& plan,
                             const TensorView& taken, DeviceStatus* status);

}  // namespace linestate
