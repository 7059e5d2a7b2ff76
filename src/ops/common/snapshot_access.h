// A snapshot plan as the kernels on the CPU read it. Follows SnapshotPlan in
// include/linestate/rows.h. Nothing here allocates.
#pragma once

#include <cstdint>
#include <limits>

#include "base/row_access.h"
#include "linestate/exec_context.h"
#include "linestate/rows.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate {

/// Shapes and dtypes, and on the CPU the values: row ids of the call, destinations distinct and no
/// live row's slot. Passes when the plan is undefined. REQUIRES: the rows passed their own check.
Status check_snapshots(const SnapshotPlan& plan, const RowTensors& rows, int64_t num_slots,
                       const ExecContext& context);
/// For decode rows, whose position in the sequence is not known without rows.start.
Status check_decode_snapshots(const SnapshotPlan& plan, const RowTensors& rows, int64_t num_slots,
                              const ExecContext& context);
/// An op that takes no snapshots.
Status check_no_snapshots(const SnapshotPlan& plan);
/// The plan's tensors lie apart from `output`.
Status check_snapshots_apart(const SnapshotPlan& plan, const char* output_name,
                             const ConstTensorView& output);

/// The entries of one row of the call. Positions become tokens of the call: 1 is the state after
/// the row's first token.
class RowSnapshots {
 public:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  /// `reach` tokens of the row count: its valid ones, or the accepted path.
  RowSnapshots(const SnapshotPlan& plan, int64_t row_index, const RowInfo& row, int64_t num_slots,
               int64_t reach)
      : plan_(plan), row_index_(row_index), row_(row), num_slots_(num_slots), reach_(reach) {}

  /// The first wanted token count in (done, reach]; kNone when there is none.
  int64_t next(int64_t done) const;

  /// visit(entry, destination slot) for the entries after exactly `tokens` tokens.
  template <typename Visit>
  void at(int64_t tokens, const Visit& visit) const {
    for (int64_t m = 0; m < entries(); ++m) {
      if (taken_after(m) == tokens) visit(m, load_index(plan_.slot, m));
    }
  }

  /// Tokens of the call after which entry m is taken; kNone when it is not.
  int64_t taken_after(int64_t m) const;

 private:
  int64_t entries() const { return plan_.defined() ? plan_.row.shape[0] : 0; }

  const SnapshotPlan& plan_;
  int64_t row_index_;
  const RowInfo& row_;
  int64_t num_slots_;
  int64_t reach_;
};

/// Raises kSnapshotNotTaken for row n when one of its wanted entries is not reached.
void raise_snapshots_not_taken(const SnapshotPlan& plan, int64_t n, const RowInfo& row,
                               int64_t num_slots, int64_t reach, DeviceStatus* status);

/// The same for every row of a prefill or decode call.
void raise_prefill_snapshots_not_taken(const SnapshotPlan& plan, const RowTensors& rows,
                                       int64_t num_slots, DeviceStatus* status);
void raise_decode_snapshots_not_taken(const SnapshotPlan& plan, const RowTensors& rows,
                                      int64_t num_slots, DeviceStatus* status);

}  // namespace linestate
