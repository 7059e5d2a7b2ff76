#include <cstddef>

#include "base/message.h"
#include "batch/check_batch.h"
#include "linestate/forward_batch.h"
#include "linestate/ops/state_ops.h"

namespace linestate {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 24;
constexpr size_t kMostSegments = 4;  // one a kind

}  // namespace

struct ForwardMetadata::Impl {
  int64_t max_rows = 0;

  // What the kernels read. Sized once; refilled in place so that addresses never change.
  std::vector<int32_t> slot;                     // [max_rows]
  std::vector<int64_t> query_start_loc;          // [max_rows + 1]
  std::vector<int64_t> start;                    // [max_rows]
  std::vector<int32_t> num_valid;                // [max_rows]
  std::vector<int64_t> segment_query_start_loc;  // [max_rows + kMostSegments]

  int64_t num_rows = 0;
  int64_t num_tokens = 0;
  int64_t token_capacity = 0;
  int64_t num_prefills = 0;
  int64_t num_decodes = 0;
  int64_t num_prefill_tokens = 0;
  std::vector<Segment> segments;
  RowTensors rows;

  explicit Impl(int64_t rows_in)
      : max_rows(rows_in),
        slot(static_cast<size_t>(rows_in)),
        query_start_loc(static_cast<size_t>(rows_in) + 1),
        start(static_cast<size_t>(rows_in)),
        num_valid(static_cast<size_t>(rows_in)),
        segment_query_start_loc(static_cast<size_t>(rows_in) + kMostSegments) {
    segments.reserve(kMostSegments);
    view_rows();
  }

  void view_rows();
  void fill(const ForwardBatch& batch, int64_t num_slots);
  void add_segments(const ForwardBatch& batch);
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

ForwardMetadata::ForwardMetadata(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ForwardMetadata::ForwardMetadata(ForwardMetadata&&) noexcept = default;
ForwardMetadata& ForwardMetadata::operator=(ForwardMetadata&&) noexcept = default;
ForwardMetadata::~ForwardMetadata() = default;

Result<ForwardMetadata> ForwardMetadata::create(int64_t max_rows, Device device) {
  if (max_rows < 1 || max_rows > kMostRows) {
    return invalid_argument("max_rows: expected 1 to ", kMostRows, ", got ", max_rows);
  }
  if (device.type != DeviceType::kCpu) {
    return Status(
        StatusCode::kUnsupported,
        concat("device: expected cpu, the only device of this version, got ", device_name(device)));
  }
  return ForwardMetadata(std::make_unique<Impl>(max_rows));
}

Status ForwardMetadata::prepare(const ForwardBatch& batch, const StatePool& pool,
                                const ExecContext& context) {
  if (!pool.memory_bound()) {
    return Status(StatusCode::kFailedPrecondition, "pool: expected bound memory, it was released");
  }
  LINESTATE_RETURN_IF_ERROR(check_batch(batch, impl_->max_rows, pool.num_slots()));

  const DeferredSlotWork pre = physical_work(batch, pool.num_slots());
  if (!pre.clear.empty()) {
    StateClearParams clear;
    clear.planes = pool.planes();
    clear.slots =
        ConstTensorView(pre.clear.data(), DType::kI32, {static_cast<int64_t>(pre.clear.size())});
    LINESTATE_RETURN_IF_ERROR(state_clear(clear, context));
  }
  if (!pre.copy.empty()) {
    const auto count = static_cast<int64_t>(pre.copy.size());
    const std::vector<ConstTensorView> sources(pool.planes().begin(), pool.planes().end());
    // A Copy is two adjacent ids, so each side is a strided view of the list itself.
    ConstTensorView pairs(pre.copy.data(), DType::kI32, {count, 2});
    StateCopyParams copy;
    copy.src = sources;
    copy.dst = pool.planes();
    copy.src_slots = pairs.select(1, 0);
    copy.dst_slots = pairs.select(1, 1);
    LINESTATE_RETURN_IF_ERROR(state_copy(copy, context));
  }
  impl_->fill(batch, pool.num_slots());
  return {};
}

static_assert(sizeof(DeferredSlotWork::Copy) == 2 * sizeof(int32_t));

int64_t ForwardMetadata::num_rows() const { return impl_->num_rows; }
int64_t ForwardMetadata::num_tokens() const { return impl_->num_tokens; }
int64_t ForwardMetadata::token_capacity() const { return impl_->token_capacity; }
int64_t ForwardMetadata::num_prefills() const { return impl_->num_prefills; }
int64_t ForwardMetadata::num_decodes() const { return impl_->num_decodes; }
int64_t ForwardMetadata::num_prefill_tokens() const { return impl_->num_prefill_tokens; }
std::span<const Segment> ForwardMetadata::segments() const { return impl_->segments; }
const RowTensors& ForwardMetadata::rows() const { return impl_->rows; }

}  // namespace linestate
