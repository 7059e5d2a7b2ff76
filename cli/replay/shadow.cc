#include "cli/replay/shadow.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "cli/interrupt.h"
#include "cli/replay/device_copies.h"
#include "cli/replay/error_sums.h"
#include "testing/fill.h"

namespace linestate::cli {
namespace {

constexpr double kRoundingFactor = 1.05;
constexpr double kF32Limit = 5e-5;
constexpr double kHalfStateLimit = 1e-3;
constexpr size_t kMostBrokenLines = 8;

// Undefined when the device cannot be read; verification then fails and says so.
ConstTensorView look(HostLook& host, const ConstTensorView& view, void* stream) {
  const Result<ConstTensorView> seen = host.at(view, stream);
  return seen.ok() ? *seen : ConstTensorView();
}

// Slot `slot` of a pool plane without its first dimension.
TensorView slot_view(const TensorView& plane, int32_t slot) { return plane.select(0, slot); }

size_t view_bytes(const ConstTensorView& view) {
  return static_cast<size_t>(view.num_elements() * dtype_bytes(view.dtype));
}

// What one shadow knows of one request.
struct LaneRequest {
  std::vector<ErrorSums> output;  // per layer
  std::vector<ErrorSums> state;   // per layer: last call's (reload) or the end's
};

// One way of running the requests alone.
struct Lane {
  StatePool pool;
  LayerRunner runner;
  bool reload = false;  // start each call from the row's own stored state
  bool judged = false;
  std::vector<ForwardMetadata> metadata;  // one per sampled row of a step
  std::map<int64_t, LaneRequest> requests;
};

// A lane that reloads also takes the batch's snapshots: that of the step's i-th sampled row in slot
// max_rows + i.
int64_t lane_slots(const ShadowOptions& options, bool reload) {
  return options.max_rows * (reload && options.snapshots ? 2 : 1);
}

Result<Lane> make_lane(const LayerStack& stack, PoolSpec spec, DType state_dtype, bool judged,
                       const ShadowOptions& options) {
  spec.state_dtype = state_dtype;
  const bool reload = judged && state_dtype != DType::kF32;
  if (!reload) spec.replay = {};
  Result<StatePool> pool = StatePool::create(spec, lane_slots(options, reload));
  if (!pool.ok()) return pool.status();
  ExecContext context;
  context.num_threads = options.threads;
  Result<LayerRunner> runner =
      LayerRunner::create(stack, "ref", options.max_tokens, *pool, context);
  if (!runner.ok()) return runner.status();
  Lane lane{std::move(pool).value(), std::move(runner).value(), reload, judged, {}, {}};
  for (int64_t i = 0; i < options.max_rows; ++i) {
    Result<ForwardMetadata> one = ForwardMetadata::create(ForwardCapacity{1, 0, 1});
    if (!one.ok()) return one.status();
    lane.metadata.push_back(std::move(one).value());
  }
  return lane;
}

bool worse(double error, double limit, const WorstError& than) {
  if (than.request < 0) return true;
  if (std::isnan(than.error)) return false;
  if (std::isnan(error)) return true;
  if (limit == 0.0 || than.limit == 0.0) return error - limit > than.error - than.limit;
  return error / limit > than.error / than.limit;
}

std::string place(const WorstError& worst) {
  std::ostringstream text;
  text << "request " << worst.request << ", layer " << worst.layer << ", head " << worst.head
       << " (error " << worst.error << ", limit " << worst.limit << ")";
  return text.str();
}

}  // namespace

std::string VerifySummary::failure() const {
  std::ostringstream text;
  text << "verification failed in " << failures << (failures == 1 ? " place" : " places");
  if (output.over()) text << "; worst output: " << place(output);
  if (state.over()) text << "; worst state: " << place(state);
  for (const std::string& line : broken) text << "; " << line;
  return text.str();
}

bool is_sampled(int64_t request, double fraction, uint64_t seed) {
  const uint64_t hash =
      testing::hash64(testing::hash64(seed + 0x766572696679ull) + static_cast<uint64_t>(request));
  return static_cast<double>(hash >> 11) * 0x1p-53 < fraction;
}

struct Shadow::Impl {
  const LayerStack& stack;
  const StatePool& pool;
  std::span<const TraceRequest> trace;
  ShadowOptions options;
  std::vector<Lane> lanes;
  LayerBuffers buffers;
  std::vector<int64_t> head_begin;  // global number of a layer's first value head
  VerifySummary summary;
  HostLook host;      // at the run's pool
  HostLook host_too;  // at a second place of it
  void* stream = nullptr;

  // The step being verified.
  struct SampledRow {
    BatchRow row;
    int32_t slot = kPadSlot;      // in the lanes' pools
    std::vector<TokenAt> tokens;  // that the request advances by
    int32_t snapshot = kPadSlot;  // slot of the run's pool that takes one on the way
    int64_t snapshot_position = 0;
  };
  const BuiltBatch* batch = nullptr;
  std::vector<SampledRow> rows;
  std::map<int64_t, int32_t> slots;  // request -> slot in the lanes' pools

  Impl(const LayerStack& stack_in, const StatePool& pool_in, std::span<const TraceRequest> trace_in,
       const ShadowOptions& options_in)
      : stack(stack_in),
        pool(pool_in),
        trace(trace_in),
        options(options_in),
        buffers(stack_in.model, options_in.max_tokens, options_in.io_dtype, DType::kF32),
        stream(options_in.stream) {}

  Status setup();
  Status admit(const BatchRow& row, const ForwardBatch& forward);
  void check_copy(const BatchRow& row, const ForwardBatch& forward);
  Status prepare_lanes(size_t index);
  int32_t lane_snapshot(size_t index) const {
    return static_cast<int32_t>(options.max_rows) + static_cast<int32_t>(index);
  }
  Status run_prefix(Lane& lane, const BatchRow& row, int32_t slot);
  Status prepare_row(Lane& lane, ForwardMetadata& metadata, const Row& alone,
                     std::span<const SnapshotRequest> snapshots);
  Status run_tokens(Lane& lane, const ForwardMetadata& metadata, int64_t layer,
                    std::span<const TokenAt> tokens);
  void compare_state(Lane& lane, int64_t request, int64_t layer, int32_t pool_slot,
                     int32_t lane_slot);
  double state_limit(const Lane& lane) const;
  bool half_ring() const { return pool.has_replay() && pool.spec().replay.dtype != DType::kF32; }
  void compare_row(Lane& lane, size_t index, int64_t layer, const TensorView& out);
  void judge(double error, double limit, const ErrorSums& sums, int64_t request, int64_t layer,
             bool judged, WorstError& worst);
  void judge_state(Lane& lane, int64_t request, int64_t layer);
  void judge_output(Lane& lane, int64_t request, int64_t layer);
  void compare_windows(Lane& lane, int64_t request, int32_t pool_slot, int32_t lane_slot);
  void add_broken(std::string line);
  void check_padding(int64_t layer, const TensorView& out);
};

Status Shadow::Impl::setup() {
  const DType dtype = pool.spec().state_dtype;
  Result<Lane> judged = make_lane(stack, pool.spec(), dtype, true, options);
  if (!judged.ok()) return judged.status();
  lanes.push_back(std::move(judged).value());
  if (dtype != DType::kF32) {
    Result<Lane> free = make_lane(stack, pool.spec(), DType::kF32, false, options);
    if (!free.ok()) return free.status();
    lanes.push_back(std::move(free).value());
  }
  for (const LayerSpec& layer : stack.model.linear_layers) {
    // This rank's heads follow those of the ranks before it.
    head_begin.push_back(options.shard.rank * layer.heads.num_value_heads);
  }
  return {};
}

// The batch's preparation has copied the cached prefix into the row's slot.
void Shadow::Impl::check_copy(const BatchRow& row, const ForwardBatch& forward) {
  for (const DeferredSlotWork::Copy& copy : forward.pre.copy) {
    if (copy.dst != row.row.slot) continue;
    for (const TensorView& plane : pool.planes()) {
      const ConstTensorView from = look(host, slot_view(plane, copy.src), stream);
      const ConstTensorView to = look(host_too, slot_view(plane, copy.dst), stream);
      const bool seen = from.defined() && to.defined();
      if (seen && std::memcmp(to.data, from.data, view_bytes(from)) == 0) continue;
      add_broken("request " + std::to_string(row.request) +
                 ": the state it starts from is not its snapshot's");
      return;
    }
  }
}

Status Shadow::Impl::admit(const BatchRow& row, const ForwardBatch& forward) {
  int32_t slot = kPadSlot;
  for (Lane& lane : lanes) {  // equal histories, so equal slots
    Result<int32_t> allocated = lane.pool.allocate();
    if (!allocated.ok()) return allocated.status();
    slot = *allocated;
    LaneRequest& sums = lane.requests[row.request];
    for (const LayerSpec& layer : stack.model.linear_layers) {
      sums.output.emplace_back(layer.heads.num_value_heads);
      sums.state.emplace_back(layer.heads.num_value_heads);
    }
  }
  slots[row.request] = slot;
  if (row.row.start == 0) return {};
  check_copy(row, forward);
  for (Lane& lane : lanes) {
    LINESTATE_RETURN_IF_ERROR(run_prefix(lane, row, slot));
    if (lane.judged) compare_windows(lane, row.request, row.row.slot, slot);
    // On 16-bit pools the snapshot was judged as it was taken; the free lane's distance is
    // reported.
    for (int64_t layer = 0; !lane.reload && layer < stack.num_layers(); ++layer) {
      compare_state(lane, row.request, layer, row.row.slot, slot);
    }
  }
  return {};
}

// The tokens that the batch took from the cache, from the very first one.
Status Shadow::Impl::run_prefix(Lane& lane, const BatchRow& row, int32_t slot) {
  ForwardMetadata& metadata = lane.metadata.front();
  for (int64_t start = 0; start < row.row.start; start += options.max_tokens) {
    const int64_t count = std::min(options.max_tokens, row.row.start - start);
    std::vector<TokenAt> tokens;
    for (int64_t position = start; position < start + count; ++position) {
      tokens.push_back(
          {token_id(trace[static_cast<size_t>(row.request)], row.request, position), position});
    }
    const Row alone{slot, RowKind::kExtend, start, static_cast<int32_t>(count)};
    LINESTATE_RETURN_IF_ERROR(prepare_row(lane, metadata, alone, {}));
    for (int64_t layer = 0; layer < stack.num_layers(); ++layer) {
      if (interrupted()) return Status(StatusCode::kCancelled, interrupt_message());
      LINESTATE_RETURN_IF_ERROR(run_tokens(lane, metadata, layer, tokens));
    }
  }
  return {};
}

Status Shadow::Impl::prepare_row(Lane& lane, ForwardMetadata& metadata, const Row& alone,
                                 std::span<const SnapshotRequest> snapshots) {
  ForwardBatch one;
  one.rows = {&alone, 1};
  one.snapshots = snapshots;
  return metadata.prepare(one, lane.pool, lane.runner.context());
}

Status Shadow::Impl::run_tokens(Lane& lane, const ForwardMetadata& metadata, int64_t layer,
                                std::span<const TokenAt> tokens) {
  // Generated again, not taken from the batch: a batch that changes its inputs is caught.
  // One token is less work than waking a second thread, and there are thousands of such calls.
  const int32_t threads = tokens.size() == 1 ? 1 : options.threads;
  lane.runner.use_threads(threads);
  buffers.shape_for(stack.layer(layer), static_cast<int64_t>(tokens.size()));
  buffers.fill(stack.activations[static_cast<size_t>(layer)], 0, tokens, threads);
  return lane.runner.forward(layer, metadata, lane.pool, buffers);
}

void Shadow::Impl::judge(double error, double limit, const ErrorSums& sums, int64_t request,
                         int64_t layer, bool judged, WorstError& worst) {
  if (judged && !(error <= limit)) ++summary.failures;
  if (!worse(error, limit, worst)) return;
  worst = {error, limit, request, stack.layer(layer).layer_id,
           head_begin[static_cast<size_t>(layer)] + sums.worst_head()};
}

void Shadow::Impl::judge_state(Lane& lane, int64_t request, int64_t layer) {
  const ErrorSums& sums = lane.requests[request].state[static_cast<size_t>(layer)];
  const HeadSums total = sums.total();
  judge(relative_rms(total.error, total.norm), state_limit(lane), sums, request, layer, lane.judged,
        lane.judged ? summary.state : summary.free_state);
}

double Shadow::Impl::state_limit(const Lane& lane) const {
  if (!lane.judged) return 0.0;
  return lane.reload || half_ring() ? kHalfStateLimit : kF32Limit;
}

void Shadow::Impl::compare_state(Lane& lane, int64_t request, int64_t layer, int32_t pool_slot,
                                 int32_t lane_slot) {
  ErrorSums& sums = lane.requests[request].state[static_cast<size_t>(layer)];
  sums = ErrorSums(stack.layer(layer).heads.num_value_heads);
  const ConstTensorView actual = look(host, slot_view(pool.recurrent(layer), pool_slot), stream);
  if (!actual.defined()) return add_broken("state of a slot cannot be read from the device");
  add_state_errors(actual, slot_view(lane.pool.recurrent(layer), lane_slot), sums);
  judge_state(lane, request, layer);
}

void Shadow::Impl::judge_output(Lane& lane, int64_t request, int64_t layer) {
  const ErrorSums& sums = lane.requests[request].output[static_cast<size_t>(layer)];
  const HeadSums total = sums.total();
  double limit = 0.0;
  if (lane.judged) {
    limit = options.io_dtype == DType::kF32
                ? kF32Limit
                : kRoundingFactor * relative_rms(total.rounding, total.norm);
    if (half_ring() && !lane.reload) limit = std::hypot(limit, kHalfStateLimit);
  }
  judge(relative_rms(total.error, total.norm), limit, sums, request, layer, lane.judged,
        lane.judged ? summary.output : summary.free_output);
}

void Shadow::Impl::compare_row(Lane& lane, size_t index, int64_t layer, const TensorView& out) {
  const SampledRow& row = rows[index];
  ErrorSums& sums = lane.requests[row.row.request].output[static_cast<size_t>(layer)];
  if (row.row.row.kind != RowKind::kVerify) {
    const int64_t first = row.row.first_token;
    add_output_errors(out.slice(0, first, first + row.row.row.tokens), buffers.out(), sums);
  } else {
    for (int64_t i = 0; i < row.row.advance(); ++i) {
      const int64_t token = row.row.token_at(i);
      add_output_errors(out.slice(0, token, token + 1), buffers.out().slice(0, i, i + 1), sums);
    }
  }
  if (lane.reload && row.snapshot != kPadSlot) {
    compare_state(lane, row.row.request, layer, row.snapshot, lane_snapshot(index));
  }
  // A verify row's state is there after the commit.
  if (!lane.reload || row.row.row.kind == RowKind::kVerify) return;
  compare_state(lane, row.row.request, layer, row.row.row.slot, row.slot);
}

void Shadow::Impl::add_broken(std::string line) {
  ++summary.failures;
  if (summary.broken.size() < kMostBrokenLines) summary.broken.push_back(std::move(line));
}

void Shadow::Impl::compare_windows(Lane& lane, int64_t request, int32_t pool_slot,
                                   int32_t lane_slot) {
  for (int64_t layer = 0; layer < stack.num_layers(); ++layer) {
    if (!pool.conv_window(layer).defined()) continue;
    const ConstTensorView actual =
        look(host, slot_view(pool.conv_window(layer), pool_slot), stream);
    const TensorView expected = slot_view(lane.pool.conv_window(layer), lane_slot);
    if (actual.defined() && std::memcmp(actual.data, expected.data, view_bytes(expected)) == 0) {
      continue;
    }
    add_broken("request " + std::to_string(request) + ", layer " +
               std::to_string(stack.layer(layer).layer_id) + ": convolution window differs");
  }
}

void Shadow::Impl::check_padding(int64_t layer, const TensorView& out) {
  const int64_t row_elements = out.stride[0];
  for (const BuiltBatch::TokenRange& range : batch->padding) {
    for (int64_t i = range.begin * row_elements; i < range.end * row_elements; ++i) {
      const bool zero = out.dtype == DType::kF32
                            ? static_cast<const float*>(out.data)[i] == 0.0f
                            : (static_cast<const uint16_t*>(out.data)[i] & 0x7fffu) == 0;
      if (zero) continue;
      add_broken("layer " + std::to_string(stack.layer(layer).layer_id) +
                 ": output of padding is not zero");
      break;
    }
  }
}

Result<Shadow> Shadow::create(const LayerStack& stack, const StatePool& pool,
                              std::span<const TraceRequest> trace, const ShadowOptions& options) {
  auto impl = std::make_unique<Impl>(stack, pool, trace, options);
  LINESTATE_RETURN_IF_ERROR(impl->setup());
  return Shadow(std::move(impl));
}

int64_t Shadow::pool_bytes(const PoolSpec& spec, const ShadowOptions& options) {
  PoolSpec free = spec;
  free.state_dtype = DType::kF32;
  free.replay = {};
  int64_t bytes = bytes_per_slot(free);
  bytes *= options.max_rows;
  if (spec.state_dtype != DType::kF32) bytes += bytes_per_slot(spec) * lane_slots(options, true);
  return bytes;
}

Shadow::Shadow(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Shadow::Shadow(Shadow&&) noexcept = default;
Shadow& Shadow::operator=(Shadow&&) noexcept = default;
Shadow::~Shadow() = default;

Status Shadow::Impl::prepare_lanes(size_t index) {
  const SampledRow& row = rows[index];
  Row alone{row.slot, RowKind::kExtend, row.row.row.start, static_cast<int32_t>(row.row.advance())};
  if (row.row.row.kind == RowKind::kDecode) alone.kind = RowKind::kDecode;
  const SnapshotRequest request{0, row.snapshot_position, lane_snapshot(index)};
  for (Lane& lane : lanes) {
    const bool snapshot = lane.reload && row.snapshot != kPadSlot;
    LINESTATE_RETURN_IF_ERROR(
        prepare_row(lane, lane.metadata[index], alone, {&request, snapshot ? 1u : 0u}));
  }
  return {};
}

Status Shadow::begin_step(const BuiltBatch& batch, const ForwardBatch& forward) {
  impl_->batch = &batch;
  impl_->rows.clear();
  for (const BatchRow& row : batch.requests) {
    if (!is_sampled(row.request, impl_->options.fraction, impl_->options.seed)) continue;
    if (impl_->slots.count(row.request) == 0) {
      LINESTATE_RETURN_IF_ERROR(impl_->admit(row, forward));
    }
    Impl::SampledRow sampled{row, impl_->slots[row.request], {}, kPadSlot, 0};
    for (const SnapshotRequest& request : forward.snapshots) {
      if (batch.rows[static_cast<size_t>(request.row)].slot != row.row.slot) continue;
      sampled.snapshot = request.slot;
      sampled.snapshot_position = request.position;
    }
    for (int64_t i = 0; i < row.advance(); ++i) {
      sampled.tokens.push_back(batch.tokens[static_cast<size_t>(row.token_at(i))]);
    }
    impl_->summary.tokens += row.advance();
    impl_->rows.push_back(std::move(sampled));
  }
  for (size_t i = 0; i < impl_->rows.size(); ++i) {
    LINESTATE_RETURN_IF_ERROR(impl_->prepare_lanes(i));
  }
  return {};
}

void Shadow::before_layer(int64_t index) {
  for (Lane& lane : impl_->lanes) {
    if (!lane.reload) continue;
    for (const Impl::SampledRow& row : impl_->rows) {
      const ConstTensorView from = look(
          impl_->host, slot_view(impl_->pool.recurrent(index), row.row.row.slot), impl_->stream);
      const TensorView to = slot_view(lane.pool.recurrent(index), row.slot);
      if (from.defined()) {
        std::memcpy(to.data, from.data, view_bytes(to));
      } else {
        impl_->add_broken("state of a slot cannot be read from the device");
      }
    }
  }
}

Status Shadow::after_layer(int64_t index, const TensorView& out) {
  impl_->check_padding(index, out);
  for (size_t i = 0; i < impl_->rows.size(); ++i) {
    for (Lane& lane : impl_->lanes) {
      if (interrupted()) return Status(StatusCode::kCancelled, interrupt_message());
      LINESTATE_RETURN_IF_ERROR(
          impl_->run_tokens(lane, lane.metadata[i], index, impl_->rows[i].tokens));
      impl_->compare_row(lane, i, index, out);
    }
  }
  return {};
}

void Shadow::end_step() {
  for (Lane& lane : impl_->lanes) {
    if (!lane.reload) continue;
    for (size_t i = 0; i < impl_->rows.size(); ++i) {
      const Impl::SampledRow& row = impl_->rows[i];
      if (row.snapshot != kPadSlot) {
        impl_->compare_windows(lane, row.row.request, row.snapshot, impl_->lane_snapshot(i));
      }
      if (row.row.row.kind != RowKind::kVerify) continue;
      for (int64_t layer = 0; layer < impl_->stack.num_layers(); ++layer) {
        impl_->compare_state(lane, row.row.request, layer, row.row.row.slot, row.slot);
      }
    }
  }
}

Status Shadow::finish(int64_t request, int32_t pool_slot) {
  const auto found = impl_->slots.find(request);
  if (found == impl_->slots.end()) return {};
  const int32_t slot = found->second;
  for (Lane& lane : impl_->lanes) {
    LINESTATE_RETURN_IF_ERROR(
        lane.pool.fold(ConstTensorView(&slot, DType::kI32, {1}), lane.runner.context()));
    for (int64_t layer = 0; layer < impl_->stack.num_layers(); ++layer) {
      impl_->judge_output(lane, request, layer);
      // Without a ring a reloading lane has judged this state after its last call.
      if (lane.reload && !lane.pool.has_replay()) continue;
      impl_->compare_state(lane, request, layer, pool_slot, slot);
    }
    if (lane.judged) impl_->compare_windows(lane, request, pool_slot, slot);
    lane.requests.erase(request);
    LINESTATE_RETURN_IF_ERROR(lane.pool.free(slot));
  }
  impl_->slots.erase(found);
  ++impl_->summary.requests;
  return {};
}

const VerifySummary& Shadow::summary() const { return impl_->summary; }

}  // namespace linestate::cli
