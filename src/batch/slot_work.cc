#include "batch/slot_work.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "batch/check_batch.h"
#include "linestate/ops/state_ops.h"

namespace linestate {
namespace {

static_assert(sizeof(DeferredSlotWork::Copy) == 2 * sizeof(int32_t));

Status prefixed(size_t index, const Status& status) {
  if (status.ok()) return {};
  return Status(status.code(), concat("pre.restore[", index, "]: ", status.message()));
}

// A row that goes on from a restored slot goes on from the position of the pack.
Status check_position(const ForwardBatch& batch, int32_t slot, int64_t position,
                      int64_t num_slots) {
  for (size_t n = 0; n < batch.rows.size(); ++n) {
    const Row& row = batch.rows[n];
    if (row.kind == RowKind::kPad || physical_slot(batch, row.slot, num_slots) != slot) continue;
    if (row.kind != RowKind::kExtend || row.start != position) {
      return invalid_argument("pack.position: expected ", row.start, ", the start of rows[", n,
                              "], an extend row, got ", position, " and a row of kind ",
                              row_kind_name(row.kind));
    }
  }
  return {};
}

ConstTensorView ids(const std::vector<int32_t>& slots) {
  return ConstTensorView(slots.data(), DType::kI32, {static_cast<int64_t>(slots.size())});
}

}  // namespace

Result<SlotWork> SlotWork::plan(const ForwardBatch& batch, const StatePool& pool) {
  SlotWork work;
  work.work_ = physical_work(batch, pool.num_slots());
  if (!batch.pre.copy.empty()) work.sources_.assign(pool.planes().begin(), pool.planes().end());
  LINESTATE_RETURN_IF_ERROR(work.plan_restores(batch, pool));
  if (pool.has_replay()) work.plan_rings(batch, pool.num_slots());
  return work;
}

Status SlotWork::plan_restores(const ForwardBatch& batch, const StatePool& pool) {
  for (size_t i = 0; i < work_.restore.size(); ++i) {
    const DeferredSlotWork::Restore& restore = work_.restore[i];
    Result<SlotUnpack> unpack =
        SlotUnpack::check(restore.pack, pool, restore.slot, restore.options);
    if (!unpack.ok()) return prefixed(i, unpack.status());
    LINESTATE_RETURN_IF_ERROR(
        prefixed(i, check_position(batch, restore.slot, unpack->position(), pool.num_slots())));
    unpacks_.push_back(std::move(unpack).value());
  }
  return {};
}

// Slots that are read get their pending records; slots whose state is replaced drop theirs.
void SlotWork::plan_rings(const ForwardBatch& batch, int64_t num_slots) {
  replaced_ = work_.clear;
  for (const DeferredSlotWork::Restore& restore : work_.restore) replaced_.push_back(restore.slot);
  for (const DeferredSlotWork::Copy& copy : work_.copy) {
    read_.push_back(copy.src);
    replaced_.push_back(copy.dst);
  }
  for (const Row& row : batch.rows) {
    if (row.kind != RowKind::kExtend && row.kind != RowKind::kVerify) continue;
    (row.start > 0 ? read_ : replaced_).push_back(physical_slot(batch, row.slot, num_slots));
  }
  for (const SnapshotRequest& request : batch.snapshots) {
    // A commit may not reach its position: the destination then keeps the state it stands for.
    const bool certain = batch.rows[static_cast<size_t>(request.row)].kind != RowKind::kVerify;
    (certain ? replaced_ : read_).push_back(physical_slot(batch, request.slot, num_slots));
  }
  // One prefix may be copied to many slots; fold wants each slot once. A copied slot may be the
  // source of a row that resumes: its own old records are not its state.
  std::sort(read_.begin(), read_.end());
  std::sort(replaced_.begin(), replaced_.end());
  const auto drop = [this](int32_t slot) {
    return std::binary_search(replaced_.begin(), replaced_.end(), slot);
  };
  read_.erase(std::unique(read_.begin(), read_.end()), read_.end());
  read_.erase(std::remove_if(read_.begin(), read_.end(), drop), read_.end());
}

// The fold comes first: of all the writes it alone can still fail, for want of memory.
Status SlotWork::settle_rings(const StatePool& pool, const ExecContext& context) const {
  LINESTATE_RETURN_IF_ERROR(pool.fold(ids(read_), context));
  auto* cursor = static_cast<int32_t*>(pool.replay_cursor().data);
  for (const int32_t slot : replaced_) {
    if (slot >= 0 && slot < pool.num_slots()) cursor[slot] = 0;
  }
  return {};
}

Status SlotWork::run(const StatePool& pool, const ExecContext& context) const {
  if (pool.has_replay()) LINESTATE_RETURN_IF_ERROR(settle_rings(pool, context));
  if (!work_.clear.empty()) {
    StateClearParams clear;
    clear.planes = pool.planes();
    clear.slots = ids(work_.clear);
    LINESTATE_RETURN_IF_ERROR(state_clear(clear, context));
  }
  if (!work_.copy.empty()) {
    // A Copy is two adjacent ids, so each side is a strided view of the list itself.
    ConstTensorView pairs(work_.copy.data(), DType::kI32,
                          {static_cast<int64_t>(work_.copy.size()), 2});
    StateCopyParams copy;
    copy.src = sources_;
    copy.dst = pool.planes();
    copy.src_slots = pairs.select(1, 0);
    copy.dst_slots = pairs.select(1, 1);
    LINESTATE_RETURN_IF_ERROR(state_copy(copy, context));
  }
  for (const SlotUnpack& unpack : unpacks_) unpack.run();
  return {};
}

}  // namespace linestate
