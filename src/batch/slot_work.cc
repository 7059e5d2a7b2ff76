#include "batch/slot_work.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "batch/check_batch.h"
#include "linestate/device_memory.h"
#include "linestate/ops/state_ops.h"

namespace linestate {
namespace {

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

/// Hands out the lists of ids in the order of write_ids.
class IdReader {
 public:
  IdReader(const int32_t* at, Device device) : at_(at), device_(device) {}
  ConstTensorView take(size_t count) {
    const ConstTensorView list(at_, DType::kI32, {static_cast<int64_t>(count)}, device_);
    at_ += count;
    return list;
  }

 private:
  const int32_t* at_;
  Device device_;
};

// The cursors of slots whose state is replaced: zero, which is all bits zero in any dtype.
Status empty_rings(const StatePool& pool, const ConstTensorView& slots,
                   const ExecContext& context) {
  if (slots.shape[0] == 0) return {};
  TensorView cursor = pool.replay_cursor();
  cursor.dtype = DType::kF32;
  cursor.rank = 2;
  cursor.shape[1] = cursor.stride[1] = 1;
  return state_clear({{&cursor, 1}, slots}, context);
}

}  // namespace

int64_t SlotWork::most_ids(const ForwardCapacity& capacity) {
  const int64_t work = capacity.slot_work > 0 ? capacity.slot_work : capacity.rows;
  const int64_t others = capacity.rows + capacity.snapshots;
  // Rings that are read: copied slots and others. Replaced: cleared and copied slots and others.
  return (work + others) + (2 * work + others) + 3 * work;
}

int64_t SlotWork::num_ids() const {
  return static_cast<int64_t>(read_.size() + replaced_.size() + work_.clear.size() +
                              2 * work_.copy.size());
}

void SlotWork::write_ids(int32_t* to) const {
  for (const std::vector<int32_t>* list : {&read_, &replaced_, &work_.clear}) {
    to = std::copy(list->begin(), list->end(), to);
  }
  for (const DeferredSlotWork::Copy& copy : work_.copy) *to++ = copy.src;
  for (const DeferredSlotWork::Copy& copy : work_.copy) *to++ = copy.dst;
}

Result<SlotWork> SlotWork::plan(const ForwardBatch& batch, const StatePool& pool, void* stream) {
  SlotWork work;
  work.work_ = physical_work(batch, pool.num_slots());
  if (!batch.pre.copy.empty()) work.sources_.assign(pool.planes().begin(), pool.planes().end());
  LINESTATE_RETURN_IF_ERROR(work.plan_restores(batch, pool, stream));
  if (pool.has_replay()) work.plan_rings(batch, pool.num_slots());
  return work;
}

Status SlotWork::plan_restores(const ForwardBatch& batch, const StatePool& pool, void* stream) {
  if (work_.restore.empty()) return {};
  staging_.resize(static_cast<size_t>(slot_staging_bytes(pool)));
  const SlotStaging staging{stream, staging_};
  for (size_t i = 0; i < work_.restore.size(); ++i) {
    const DeferredSlotWork::Restore& restore = work_.restore[i];
    Result<SlotUnpack> unpack =
        SlotUnpack::check(restore.pack, pool, restore.slot, restore.options, staging);
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
  for (std::vector<int32_t>* list : {&read_, &replaced_}) {
    list->erase(std::unique(list->begin(), list->end()), list->end());
    const auto outside = [&](int32_t slot) { return slot < 0 || slot >= num_slots; };
    list->erase(std::remove_if(list->begin(), list->end(), outside), list->end());
  }
  read_.erase(std::remove_if(read_.begin(), read_.end(), drop), read_.end());
}

// The fold comes first: of all the writes it alone can still fail on a CPU, for want of memory.
Status SlotWork::run(const StatePool& pool, const ExecContext& context, const int32_t* ids) const {
  IdReader lists(ids, pool.device());
  const ConstTensorView read = lists.take(read_.size());
  const ConstTensorView replaced = lists.take(replaced_.size());
  if (pool.has_replay()) {
    if (!read_.empty()) LINESTATE_RETURN_IF_ERROR(pool.fold(read, context));
    LINESTATE_RETURN_IF_ERROR(empty_rings(pool, replaced, context));
  }
  StateClearParams clear;
  clear.planes = pool.planes();
  clear.slots = lists.take(work_.clear.size());
  if (!work_.clear.empty()) LINESTATE_RETURN_IF_ERROR(state_clear(clear, context));
  StateCopyParams copy;
  copy.src = sources_;
  copy.dst = pool.planes();
  copy.src_slots = lists.take(work_.copy.size());
  copy.dst_slots = lists.take(work_.copy.size());
  if (!work_.copy.empty()) LINESTATE_RETURN_IF_ERROR(state_copy(copy, context));
  for (const SlotUnpack& unpack : unpacks_) {
    LINESTATE_RETURN_IF_ERROR(unpack.run());
    // The next one takes the same staging, and behind the last one it is gone.
    if (!staging_.empty()) LINESTATE_RETURN_IF_ERROR(synchronize(pool.device(), context.stream));
  }
  return {};
}

}  // namespace linestate
