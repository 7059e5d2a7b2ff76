#include <algorithm>
#include <cstddef>

#include "base/message.h"
#include "batch/check_batch.h"
#include "batch/slot_work.h"
#include "linestate/forward_batch.h"

namespace linestate {
namespace {

constexpr int64_t kMost = int64_t{1} << 24;  // of anything a capacity counts
constexpr size_t kMostSegments = 4;          // one a kind

}  // namespace

struct ForwardMetadata::Impl {
  ForwardCapacity capacity;

  // What the kernels read. Sized once; refilled in place so that addresses never change.
  std::vector<int32_t> slot;                     // [max_rows]
  std::vector<int64_t> query_start_loc;          // [max_rows + 1]
  std::vector<int64_t> start;                    // [max_rows]
  std::vector<int32_t> num_valid;                // [max_rows]
  std::vector<int64_t> segment_query_start_loc;  // [max_rows + kMostSegments]
  std::vector<int32_t> parent;                   // [max verify tokens]

  // Snapshot requests, those of one segment together.
  std::vector<int32_t> snapshot_row;  // counted from the segment's first row
  std::vector<int64_t> snapshot_position;
  std::vector<int32_t> snapshot_slot;
  std::vector<uint8_t> snapshot_taken;
  std::vector<int32_t> snapshot_source;
  std::vector<size_t> snapshot_at;  // place of the batch's i-th request in the four above

  // Decode rows of a pool with replay rings.
  std::vector<uint8_t> force_flush;     // [rows]
  std::vector<int32_t> replay_pending;  // [rows]
  std::vector<uint8_t> replay_flush;    // [rows]

  int64_t num_rows = 0;
  int64_t num_tokens = 0;
  int64_t token_capacity = 0;
  int64_t num_prefills = 0;
  int64_t num_decodes = 0;
  int64_t num_prefill_tokens = 0;
  std::vector<Segment> segments;
  RowTensors rows;

  explicit Impl(const ForwardCapacity& room)
      : capacity(room),
        slot(static_cast<size_t>(room.rows)),
        query_start_loc(static_cast<size_t>(room.rows) + 1),
        start(static_cast<size_t>(room.rows)),
        num_valid(static_cast<size_t>(room.rows)),
        segment_query_start_loc(static_cast<size_t>(room.rows) + kMostSegments),
        parent(static_cast<size_t>(room.verify_tokens)),
        snapshot_row(static_cast<size_t>(room.snapshots)),
        snapshot_position(static_cast<size_t>(room.snapshots)),
        snapshot_slot(static_cast<size_t>(room.snapshots)),
        snapshot_taken(static_cast<size_t>(room.snapshots)),
        snapshot_source(static_cast<size_t>(room.snapshots)),
        force_flush(static_cast<size_t>(room.rows)),
        replay_pending(static_cast<size_t>(room.rows)),
        replay_flush(static_cast<size_t>(room.rows)) {
    segments.reserve(kMostSegments);
    snapshot_at.reserve(static_cast<size_t>(room.snapshots));
    view_rows();
  }

  void view_rows();
  void fill(const ForwardBatch& batch, int64_t num_slots);
  void add_segments(const ForwardBatch& batch);
  void add_parents(const ForwardBatch& batch);
  void add_snapshots(const ForwardBatch& batch, int64_t num_slots);
  Status begin_replay(const ForwardBatch& batch, const StatePool& pool, const ExecContext& context);
};

void ForwardMetadata::Impl::view_rows() {
  rows.slot = ConstTensorView(slot.data(), DType::kI32, {num_rows});
  rows.query_start_loc = ConstTensorView(query_start_loc.data(), DType::kI64, {num_rows + 1});
  rows.start = ConstTensorView(start.data(), DType::kI64, {num_rows});
  rows.num_valid = ConstTensorView(num_valid.data(), DType::kI32, {num_rows});
}

void ForwardMetadata::Impl::fill(const ForwardBatch& batch, int64_t num_slots) {
  num_rows = static_cast<int64_t>(batch.rows.size());
  num_prefills = num_decodes = num_prefill_tokens = 0;
  int64_t token = 0;
  query_start_loc[0] = 0;
  for (size_t n = 0; n < batch.rows.size(); ++n) {
    const Row& row = batch.rows[n];
    const bool pad = row.kind == RowKind::kPad;
    slot[n] = pad ? kPadSlot : physical_slot(batch, row.slot, num_slots);
    start[n] = row.start;
    num_valid[n] = row.num_valid < 0 ? row.tokens : row.num_valid;
    token += row.tokens;
    query_start_loc[n + 1] = token;
    if (row.kind == RowKind::kExtend) {
      ++num_prefills;
      num_prefill_tokens += row.tokens;
    }
    if (row.kind == RowKind::kDecode) ++num_decodes;
  }
  num_tokens = token;
  token_capacity = batch.token_capacity > 0 ? batch.token_capacity : token;
  view_rows();
  add_segments(batch);
  add_parents(batch);
  add_snapshots(batch, num_slots);
}

void ForwardMetadata::Impl::add_segments(const ForwardBatch& batch) {
  segments.clear();
  size_t used = 0;  // of segment_query_start_loc
  for (int64_t begin = 0; begin < num_rows;) {
    const RowKind kind = batch.rows[static_cast<size_t>(begin)].kind;
    int64_t end = begin;
    while (end < num_rows && batch.rows[static_cast<size_t>(end)].kind == kind) ++end;

    Segment segment;
    segment.kind = kind;
    segment.row_begin = begin;
    segment.row_end = end;
    segment.token_begin = query_start_loc[static_cast<size_t>(begin)];
    segment.token_end = query_start_loc[static_cast<size_t>(end)];
    int64_t* local = segment_query_start_loc.data() + used;
    for (int64_t n = begin; n <= end; ++n) {
      local[n - begin] = query_start_loc[static_cast<size_t>(n)] - segment.token_begin;
    }
    used += static_cast<size_t>(end - begin) + 1;
    segment.rows.slot = rows.slot.slice(0, begin, end);
    segment.rows.query_start_loc = ConstTensorView(local, DType::kI64, {end - begin + 1});
    segment.rows.start = rows.start.slice(0, begin, end);
    segment.rows.num_valid = rows.num_valid.slice(0, begin, end);
    segments.push_back(segment);
    begin = end;
  }
}

void ForwardMetadata::Impl::add_parents(const ForwardBatch& batch) {
  if (batch.parent.empty()) return;
  std::copy(batch.parent.begin(), batch.parent.end(), parent.begin());
  for (Segment& segment : segments) {
    if (segment.kind != RowKind::kVerify) continue;
    segment.parent =
        ConstTensorView(parent.data(), DType::kI32, {segment.token_end - segment.token_begin});
  }
}

void ForwardMetadata::Impl::add_snapshots(const ForwardBatch& batch, int64_t num_slots) {
  snapshot_at.assign(batch.snapshots.size(), 0);
  size_t used = 0;
  for (Segment& segment : segments) {
    const size_t first = used;
    for (size_t i = 0; i < batch.snapshots.size(); ++i) {
      const SnapshotRequest& request = batch.snapshots[i];
      if (request.row < segment.row_begin || request.row >= segment.row_end) continue;
      const int32_t to = physical_slot(batch, request.slot, num_slots);
      const int32_t from = slot[static_cast<size_t>(request.row)];
      const bool live = to >= 0 && to < num_slots && from >= 0 && from < num_slots;
      snapshot_row[used] = request.row - static_cast<int32_t>(segment.row_begin);
      snapshot_position[used] = request.position;
      snapshot_source[used] = from;
      snapshot_slot[used] = to;
      // Extend and decode rows pass their positions for certain; commit answers for verify rows.
      snapshot_taken[used] = live && segment.kind != RowKind::kVerify ? 1 : 0;
      snapshot_at[i] = used++;
    }
    if (used == first) continue;
    const auto count = static_cast<int64_t>(used - first);
    segment.snapshots.row = ConstTensorView(snapshot_row.data() + first, DType::kI32, {count});
    segment.snapshots.position =
        ConstTensorView(snapshot_position.data() + first, DType::kI64, {count});
    segment.snapshots.slot = ConstTensorView(snapshot_slot.data() + first, DType::kI32, {count});
    segment.snapshot_source = ConstTensorView(snapshot_source.data() + first, DType::kI32, {count});
    segment.taken = TensorView(snapshot_taken.data() + first, DType::kU8, {count});
  }
}

// Cursors of the decode rows advance, once for all layers. A row that is to be snapshotted flushes.
Status ForwardMetadata::Impl::begin_replay(const ForwardBatch& batch, const StatePool& pool,
                                           const ExecContext& context) {
  for (Segment& segment : segments) {
    if (segment.kind != RowKind::kDecode) continue;
    const auto first = static_cast<size_t>(segment.row_begin);
    const int64_t count = segment.row_end - segment.row_begin;
    for (size_t n = first; n < static_cast<size_t>(segment.row_end); ++n) {
      force_flush[n] = batch.rows[n].force_flush ? 1 : 0;
    }
    for (const SnapshotRequest& request : batch.snapshots) {
      force_flush[static_cast<size_t>(request.row)] = 1;
    }
    ReplayStepParams step;
    step.rows = segment.rows;
    step.force_flush = ConstTensorView(force_flush.data() + first, DType::kU8, {count});
    step.ring_length = pool.spec().replay.length;
    step.cursor = pool.replay_cursor();
    step.pending = TensorView(replay_pending.data() + first, DType::kI32, {count});
    step.flush = TensorView(replay_flush.data() + first, DType::kU8, {count});
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
  return create(ForwardCapacity{max_rows, 0, 0}, device);
}

Result<ForwardMetadata> ForwardMetadata::create(const ForwardCapacity& capacity,
                                                Device device) try {
  if (capacity.rows < 1 || capacity.rows > kMost) {
    return invalid_argument("capacity.rows: expected 1 to ", kMost, ", got ", capacity.rows);
  }
  if (capacity.verify_tokens < 0 || capacity.verify_tokens > kMost) {
    return invalid_argument("capacity.verify_tokens: expected 0 to ", kMost, ", got ",
                            capacity.verify_tokens);
  }
  if (capacity.snapshots < 0 || capacity.snapshots > kMost) {
    return invalid_argument("capacity.snapshots: expected 0 to ", kMost, ", got ",
                            capacity.snapshots);
  }
  if (device.type != DeviceType::kCpu) {
    return Status(
        StatusCode::kUnsupported,
        concat("device: expected cpu, the only device of this version, got ", device_name(device)));
  }
  return ForwardMetadata(std::make_unique<Impl>(capacity));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status ForwardMetadata::prepare(const ForwardBatch& batch, const StatePool& pool,
                                const ExecContext& context) try {
  if (!pool.memory_bound()) {
    return Status(StatusCode::kFailedPrecondition, "pool: expected bound memory, it was released");
  }
  LINESTATE_RETURN_IF_ERROR(check_batch(batch, impl_->capacity, pool.num_slots()));

  // All that needs memory is planned before anything is written.
  const Result<SlotWork> work = SlotWork::plan(batch, pool);
  if (!work.ok()) return work.status();
  LINESTATE_RETURN_IF_ERROR(work->run(pool, context));
  impl_->fill(batch, pool.num_slots());
  return pool.has_replay() ? impl_->begin_replay(batch, pool, context) : Status();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

int64_t ForwardMetadata::num_rows() const { return impl_->num_rows; }
int64_t ForwardMetadata::num_tokens() const { return impl_->num_tokens; }
int64_t ForwardMetadata::token_capacity() const { return impl_->token_capacity; }
int64_t ForwardMetadata::num_prefills() const { return impl_->num_prefills; }
int64_t ForwardMetadata::num_decodes() const { return impl_->num_decodes; }
int64_t ForwardMetadata::num_prefill_tokens() const { return impl_->num_prefill_tokens; }
std::span<const Segment> ForwardMetadata::segments() const { return impl_->segments; }
const RowTensors& ForwardMetadata::rows() const { return impl_->rows; }
bool ForwardMetadata::snapshot_taken(size_t i) const {
  return impl_->snapshot_taken[impl_->snapshot_at[i]] != 0;
}
const Segment* ForwardMetadata::find_segment(RowKind kind) const {
  for (const Segment& segment : impl_->segments) {
    if (segment.kind == kind) return &segment;
  }
  return nullptr;
}

}  // namespace linestate
