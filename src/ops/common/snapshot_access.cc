#include "ops/common/snapshot_access.h"

#include "base/check.h"
#include "base/device_status.h"

namespace linestate {
namespace {

bool wanted(const SnapshotPlan& plan, int64_t m, int64_t num_slots) {
  const int64_t slot = load_index(plan.slot, m);
  return slot >= 0 && slot < num_slots;
}

Status check_destinations(const SnapshotPlan& plan, const RowTensors& rows, int64_t num_slots) {
  LINESTATE_RETURN_IF_ERROR(check_distinct("snapshots.slot", plan.slot, num_slots));
  const int64_t N = rows.slot.shape[0];
  for (int64_t m = 0; m < plan.row.shape[0]; ++m) {
    const int64_t row = load_index(plan.row, m);
    if (row < 0 || row >= N) {
      return invalid_argument("snapshots.row: expected one of the call's ", N, " rows, got ", row,
                              " at entry ", m);
    }
    if (!wanted(plan, m, num_slots)) continue;
    const int64_t slot = load_index(plan.slot, m);
    for (int64_t n = 0; n < N; ++n) {
      if (load_index(rows.slot, n) != slot) continue;
      return invalid_argument("snapshots.slot: expected a slot of no row, got slot ", slot,
                              " of row ", n, " at entry ", m);
    }
  }
  return {};
}

}  // namespace

Status check_snapshots(const SnapshotPlan& plan, const RowTensors& rows, int64_t num_slots,
                       const ExecContext& context) {
  if (!plan.defined()) return {};
  struct Named {
    const char* name;
    const ConstTensorView& tensor;
  };
  LINESTATE_RETURN_IF_ERROR(check_shape("snapshots.row", plan.row, {kAnySize}));
  for (const Named& named :
       {Named{"snapshots.row", plan.row}, Named{"snapshots.position", plan.position},
        Named{"snapshots.slot", plan.slot}}) {
    LINESTATE_RETURN_IF_ERROR(check_shape(named.name, named.tensor, {plan.row.shape[0]}));
    LINESTATE_RETURN_IF_ERROR(check_dtype(named.name, named.tensor, {DType::kI32, DType::kI64}));
    LINESTATE_RETURN_IF_ERROR(check_placement(named.name, named.tensor, context));
  }
  if (context.device.type != DeviceType::kCpu) return {};
  return check_destinations(plan, rows, num_slots);
}

Status check_decode_snapshots(const SnapshotPlan& plan, const RowTensors& rows, int64_t num_slots,
                              const ExecContext& context) {
  if (plan.defined() && !rows.start.defined()) {
    return invalid_argument("rows.start: expected a tensor beside snapshots, got none");
  }
  return check_snapshots(plan, rows, num_slots, context);
}

Status check_no_snapshots(const SnapshotPlan& plan) {
  if (!plan.defined()) return {};
  return invalid_argument("snapshots: expected none for this operator, got ", describe(plan.row));
}

Status check_snapshots_apart(const SnapshotPlan& plan, const char* output_name,
                             const ConstTensorView& output) {
  if (!plan.defined()) return {};
  LINESTATE_RETURN_IF_ERROR(check_no_overlap(output_name, output, "snapshots.row", plan.row));
  LINESTATE_RETURN_IF_ERROR(
      check_no_overlap(output_name, output, "snapshots.position", plan.position));
  return check_no_overlap(output_name, output, "snapshots.slot", plan.slot);
}

int64_t RowSnapshots::taken_after(int64_t m) const {
  if (!row_.live || load_index(plan_.row, m) != row_index_) return kNone;
  if (!wanted(plan_, m, num_slots_)) return kNone;
  const int64_t position = load_index(plan_.position, m);
  const bool reached = position > row_.start && position - row_.start <= reach_;
  return reached ? position - row_.start : kNone;
}

int64_t RowSnapshots::next(int64_t done) const {
  int64_t first = kNone;
  for (int64_t m = 0; m < entries(); ++m) {
    const int64_t tokens = taken_after(m);
    if (tokens > done && tokens < first) first = tokens;
  }
  return first;
}

void raise_snapshots_not_taken(const SnapshotPlan& plan, int64_t n, const RowInfo& row,
                               int64_t num_slots, int64_t reach, DeviceStatus* status) {
  if (!plan.defined() || !row.live) return;
  const RowSnapshots snapshots(plan, n, row, num_slots, reach);
  for (int64_t m = 0; m < plan.row.shape[0]; ++m) {
    if (load_index(plan.row, m) != n || !wanted(plan, m, num_slots)) continue;
    if (snapshots.taken_after(m) != RowSnapshots::kNone) continue;
    raise_flag(status, DeviceFlag::kSnapshotNotTaken, static_cast<int32_t>(n));
  }
}

void raise_prefill_snapshots_not_taken(const SnapshotPlan& plan, const RowTensors& rows,
                                       int64_t num_slots, DeviceStatus* status) {
  for (int64_t n = 0; plan.defined() && n < rows.slot.shape[0]; ++n) {
    const RowInfo row = read_prefill_row(rows, n, num_slots);
    raise_snapshots_not_taken(plan, n, row, num_slots, row.valid, status);
  }
}

void raise_decode_snapshots_not_taken(const SnapshotPlan& plan, const RowTensors& rows,
                                      int64_t num_slots, DeviceStatus* status) {
  for (int64_t n = 0; plan.defined() && n < rows.slot.shape[0]; ++n) {
    const RowInfo row = read_decode_row(rows, n, num_slots);
    raise_snapshots_not_taken(plan, n, row, num_slots, row.valid, status);
  }
}

}  // namespace linestate
