#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/message.h"
#include "batch/batch_block.h"
#include "batch/batch_fill.h"
#include "batch/check_batch.h"
#include "batch/slot_work.h"
#include "cuda/device_common.h"
#include "linestate/device_memory.h"
#include "linestate/device_staging.h"
#include "linestate/forward_batch.h"
#include "linestate/trace_range.h"

namespace linestate {
namespace {

constexpr int64_t kMost = int64_t{1} << 24;  // of anything a capacity counts

// Where a batch is written before operators may see it.
struct Staging {
  PinnedMemory memory;
  DeviceEvent copied;
  BatchArrays arrays;
};

template <typename T>
void copy_array(T* to, const T* from, int64_t count) {
  if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

}  // namespace

struct ForwardMetadata::Impl {
  ForwardCapacity capacity;
  Device device{};
  int64_t work_room = 0;  // ids of slot work in the block; the CPU reads them from `work`
  DeviceMemory block;     // what operators read
  BatchArrays arrays;     // of the block
  std::array<Staging, 2> staging;
  size_t turn = 0;
  PinnedMemory taken_staging;
  std::vector<int32_t> work;
  FilledBatch now;
  FilledBatch next;

  Status allocate();
  BatchPlaces places() const;
  Status check_devices(const StatePool& pool, const ExecContext& context) const;
  Status upload(const ExecContext& context);
  void publish();
  void forget();
  Status take_ids(const SlotWork& slot_work);
  /// The ids of slot work where operators read them.
  const int32_t* ids() const { return on_cpu(device) ? work.data() : arrays.work; }
  Status begin_replay(const StatePool& pool, const ExecContext& context);
};

Status ForwardMetadata::Impl::allocate() {
  work_room = on_cpu(device) ? 0 : SlotWork::most_ids(capacity);
  const int64_t bytes = lay_out_batch(capacity, work_room, nullptr).bytes;
  Result<DeviceMemory> made = DeviceMemory::allocate(device, bytes);
  LINESTATE_RETURN_IF_ERROR(made.status());
  block = std::move(made).value();
  arrays = lay_out_batch(capacity, work_room, block.data());
  for (size_t i = 0; i < (on_cpu(device) ? 1 : staging.size()); ++i) {
    Result<PinnedMemory> memory = PinnedMemory::allocate(device, bytes);
    LINESTATE_RETURN_IF_ERROR(memory.status());
    staging[i].memory = std::move(memory).value();
    std::memset(staging[i].memory.data(), 0, static_cast<size_t>(bytes));
    staging[i].arrays = lay_out_batch(capacity, work_room, staging[i].memory.data());
    Result<DeviceEvent> copied = DeviceEvent::create(device);
    LINESTATE_RETURN_IF_ERROR(copied.status());
    staging[i].copied = std::move(copied).value();
  }
  Result<PinnedMemory> taken = PinnedMemory::allocate(device, capacity.snapshots);
  LINESTATE_RETURN_IF_ERROR(taken.status());
  taken_staging = std::move(taken).value();
  for (FilledBatch* batch : {&now, &next}) {
    batch->segments.reserve(kMostSegments);
    batch->snapshot_at.reserve(static_cast<size_t>(capacity.snapshots));
    batch->taken.reserve(static_cast<size_t>(capacity.snapshots));
  }
  fill_batch(ForwardBatch{}, 0, places(), now);
  return {};
}

BatchPlaces ForwardMetadata::Impl::places() const {
  return {staging[turn].arrays, arrays, device, capacity.verify_tokens};
}

Status ForwardMetadata::Impl::check_devices(const StatePool& pool,
                                            const ExecContext& context) const {
  if (!(pool.device() == device)) {
    return invalid_argument("pool: expected one on ", device_name(device), " as the metadata, got ",
                            device_name(pool.device()));
  }
  if (!(context.device == device)) {
    return invalid_argument("context.device: expected ", device_name(device),
                            " as the metadata, got ", device_name(context.device));
  }
  if (!DeviceGraph::capturing(device, context.stream)) return {};
  return Status(StatusCode::kFailedPrecondition,
                "prepare: expected a stream that is not being captured");
}

Status ForwardMetadata::Impl::take_ids(const SlotWork& slot_work) {
  if (!on_cpu(device) && slot_work.num_ids() > work_room) {
    return invalid_argument("pre: expected at most the slot work of capacity.slot_work (",
                            capacity.slot_work > 0 ? capacity.slot_work : capacity.rows,
                            " clears and as many copies), got more");
  }
  work.resize(static_cast<size_t>(slot_work.num_ids()));
  slot_work.write_ids(work.data());
  return {};
}

// The one copy of a batch to a device.
Status ForwardMetadata::Impl::upload(const ExecContext& context) {
  if (on_cpu(device)) return {};
  Staging& from = staging[turn];
  copy_array(from.arrays.work, work.data(), static_cast<int64_t>(work.size()));
  const auto* begin = static_cast<const char*>(from.memory.data());
  const auto used = reinterpret_cast<const char*>(from.arrays.work + work.size()) - begin;
  LINESTATE_RETURN_IF_ERROR(
      copy_bytes_async({block.data(), device}, {begin, {}}, used, context.stream));
  LINESTATE_RETURN_IF_ERROR(from.copied.record(context.stream));
  turn ^= 1;
  return {};
}

// The prepared batch becomes the current one.
void ForwardMetadata::Impl::publish() {
  std::swap(now, next);
  if (!on_cpu(device)) return;
  const BatchArrays& from = staging[0].arrays;
  const int64_t rows = now.num_rows;
  copy_array(arrays.slot, from.slot, rows);
  copy_array(arrays.query_start_loc, from.query_start_loc, rows + 1);
  copy_array(arrays.start, from.start, rows);
  copy_array(arrays.num_valid, from.num_valid, rows);
  copy_array(arrays.segment_query_start_loc, from.segment_query_start_loc,
             rows + static_cast<int64_t>(now.segments.size()));
  copy_array(arrays.parent, from.parent, now.num_parents);
  copy_array(arrays.force_flush, from.force_flush, rows);
  const auto snapshots = static_cast<int64_t>(now.taken.size());
  copy_array(arrays.snapshot_row, from.snapshot_row, snapshots);
  copy_array(arrays.snapshot_position, from.snapshot_position, snapshots);
  copy_array(arrays.snapshot_slot, from.snapshot_slot, snapshots);
  copy_array(arrays.snapshot_source, from.snapshot_source, snapshots);
  copy_array(arrays.taken, now.taken.data(), snapshots);
}

// The current batch becomes an idle one.
void ForwardMetadata::Impl::forget() {
  static_cast<void>(staging[turn].copied.wait());
  fill_batch(ForwardBatch{}, 0, places(), now);
}

// Cursors of the decode rows advance, once for all layers. A row that is to be snapshotted flushes.
Status ForwardMetadata::Impl::begin_replay(const StatePool& pool, const ExecContext& context) {
  for (Segment& segment : now.segments) {
    if (segment.kind != RowKind::kDecode) continue;
    const int64_t first = segment.row_begin;
    const int64_t count = segment.row_end - first;
    ReplayStepParams step;
    step.rows = segment.rows;
    step.force_flush = ConstTensorView(arrays.force_flush + first, DType::kU8, {count}, device);
    step.ring_length = pool.spec().replay.length;
    step.cursor = pool.replay_cursor();
    step.pending = TensorView(arrays.replay_pending + first, DType::kI32, {count}, device);
    step.flush = TensorView(arrays.replay_flush + first, DType::kU8, {count}, device);
    LINESTATE_RETURN_IF_ERROR(replay_step_begin(step, context));
    segment.replay_pending = step.pending;
    segment.replay_flush = step.flush;
  }
  return {};
}

ForwardMetadata::ForwardMetadata(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ForwardMetadata::ForwardMetadata(ForwardMetadata&&) noexcept = default;
ForwardMetadata& ForwardMetadata::operator=(ForwardMetadata&&) noexcept = default;
ForwardMetadata::~ForwardMetadata() = default;

Result<ForwardMetadata> ForwardMetadata::create(int64_t max_rows, Device device) {
  return create(ForwardCapacity{max_rows, 0, 0, 0}, device);
}

Result<ForwardMetadata> ForwardMetadata::create(const ForwardCapacity& capacity,
                                                Device device) try {
  if (capacity.rows < 1 || capacity.rows > kMost) {
    return invalid_argument("capacity.rows: expected 1 to ", kMost, ", got ", capacity.rows);
  }
  const struct {
    const char* name;
    int64_t value;
  } fields[] = {{"capacity.verify_tokens", capacity.verify_tokens},
                {"capacity.snapshots", capacity.snapshots},
                {"capacity.slot_work", capacity.slot_work}};
  for (const auto& field : fields) {
    if (field.value < 0 || field.value > kMost) {
      return invalid_argument(field.name, ": expected 0 to ", kMost, ", got ", field.value);
    }
  }
  auto impl = std::make_unique<Impl>();
  impl->capacity = capacity;
  impl->device = device;
  LINESTATE_RETURN_IF_ERROR(impl->allocate());
  return ForwardMetadata(std::move(impl));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status ForwardMetadata::prepare(const ForwardBatch& batch, const StatePool& pool,
                                const ExecContext& context) try {
  const TraceRange range("prepare");
  if (!pool.memory_bound()) {
    return Status(StatusCode::kFailedPrecondition, "pool: expected bound memory, it was released");
  }
  LINESTATE_RETURN_IF_ERROR(impl_->check_devices(pool, context));
  LINESTATE_RETURN_IF_ERROR(check_batch(batch, impl_->capacity, pool.num_slots()));
  // The staging's last copy; long over unless the device is two batches behind.
  LINESTATE_RETURN_IF_ERROR(impl_->staging[impl_->turn].copied.wait());
  // All that needs memory is planned before anything is written.
  const Result<SlotWork> work = SlotWork::plan(batch, pool, context.stream);
  if (!work.ok()) return work.status();
  LINESTATE_RETURN_IF_ERROR(impl_->take_ids(*work));
  fill_batch(batch, pool.num_slots(), impl_->places(), impl_->next);
  LINESTATE_RETURN_IF_ERROR(impl_->upload(context));
  ExecContext checked = context;
  checked.slots_checked = true;
  if (const Status ran = work->run(pool, checked, impl_->ids()); !ran.ok()) {
    if (!on_cpu(impl_->device)) impl_->forget();  // its tensors hold the new batch already
    return ran;
  }
  impl_->publish();
  return pool.has_replay() ? impl_->begin_replay(pool, checked) : Status();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status ForwardMetadata::read_taken(const ExecContext& context) try {
  std::vector<uint8_t>& taken = impl_->now.taken;
  if (on_cpu(impl_->device) || taken.empty()) return {};
  LINESTATE_RETURN_IF_ERROR(copy_bytes({impl_->taken_staging.data(), {}},
                                       {impl_->arrays.taken, impl_->device},
                                       static_cast<int64_t>(taken.size()), context.stream));
  const auto* seen = static_cast<const uint8_t*>(impl_->taken_staging.data());
  for (const Segment& segment : impl_->now.segments) {
    if (segment.kind != RowKind::kVerify || !segment.taken.defined()) continue;
    const auto* begin = static_cast<const uint8_t*>(segment.taken.data);
    const int64_t first = begin - impl_->arrays.taken;
    copy_array(taken.data() + first, seen + first, segment.taken.shape[0]);
  }
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Device ForwardMetadata::device() const { return impl_->device; }
int64_t ForwardMetadata::num_rows() const { return impl_->now.num_rows; }
int64_t ForwardMetadata::num_tokens() const { return impl_->now.num_tokens; }
int64_t ForwardMetadata::token_capacity() const { return impl_->now.token_capacity; }
int64_t ForwardMetadata::num_prefills() const { return impl_->now.num_prefills; }
int64_t ForwardMetadata::num_decodes() const { return impl_->now.num_decodes; }
int64_t ForwardMetadata::num_prefill_tokens() const { return impl_->now.num_prefill_tokens; }
std::span<const Segment> ForwardMetadata::segments() const { return impl_->now.segments; }
const RowTensors& ForwardMetadata::rows() const { return impl_->now.rows; }
bool ForwardMetadata::snapshot_taken(size_t i) const {
  const size_t at = impl_->now.snapshot_at[i];
  return (on_cpu(impl_->device) ? impl_->arrays.taken[at] : impl_->now.taken[at]) != 0;
}
const Segment* ForwardMetadata::find_segment(RowKind kind) const {
  for (const Segment& segment : impl_->now.segments) {
    if (segment.kind == kind) return &segment;
  }
  return nullptr;
}

}  // namespace linestate
