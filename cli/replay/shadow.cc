#include "cli/replay/shadow.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "cli/interrupt.h"
#include "cli/replay/error_sums.h"
#include "testing/fill.h"

namespace linestate::cli {
namespace {

constexpr double kRoundingFactor = 1.05;
constexpr double kF32Limit = 5e-5;
constexpr double kHalfStateLimit = 1e-3;
constexpr size_t kMostBrokenLines = 8;

// Slot `slot` of a pool plane without its first dimension.
TensorView slot_view(const TensorView& plane, int32_t slot) { return plane.select(0, slot); }

size_t view_bytes(const TensorView& view) {
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
  std::map<int64_t, LaneRequest> requests;
};

Result<Lane> make_lane(const LayerStack& stack, PoolSpec spec, DType state_dtype, bool judged,
                       const ShadowOptions& options) {
  spec.state_dtype = state_dtype;
  Result<StatePool> pool = StatePool::create(spec, options.max_rows);
  if (!pool.ok()) return pool.status();
  ExecContext context;
  context.num_threads = options.threads;
  Result<LayerRunner> runner =
      LayerRunner::create(stack, "ref", options.max_tokens, *pool, context);
  if (!runner.ok()) return runner.status();
  return Lane{std::move(pool).value(),
              std::move(runner).value(),
              judged && state_dtype != DType::kF32,
              judged,
              {}};
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
  ShadowOptions options;
  std::vector<Lane> lanes;
  LayerBuffers buffers;
  std::vector<ForwardMetadata> metadata;  // one per sampled row of a step
  std::vector<int64_t> head_begin;        // global number of a layer's first value head
  VerifySummary summary;

  // The step being verified.
  struct SampledRow {
    BatchRow row;
    int32_t slot = kPadSlot;  // in the lanes' pools
  };
  const BuiltBatch* batch = nullptr;
  std::vector<SampledRow> rows;
  std::map<int64_t, int32_t> slots;  // request -> slot in the lanes' pools

  Impl(const LayerStack& stack_in, const StatePool& pool_in, const ShadowOptions& options_in)
      : stack(stack_in),
        pool(pool_in),
        options(options_in),
        buffers(stack_in.model, options_in.max_tokens, options_in.io_dtype, DType::kF32) {}

  Status setup();
  Status admit(int64_t request);
  Status run_row(Lane& lane, size_t index, int64_t layer);
  void compare_row(Lane& lane, const SampledRow& row, int64_t layer, const TensorView& out);
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
  for (int64_t i = 0; i < options.max_rows; ++i) {
    Result<ForwardMetadata> one = ForwardMetadata::create(1);
    if (!one.ok()) return one.status();
    metadata.push_back(std::move(one).value());
  }
  for (const LayerSpec& layer : stack.model.linear_layers) {
    // This rank's heads follow those of the ranks before it.
    head_begin.push_back(options.shard.rank * layer.heads.num_value_heads);
  }
  return {};
}

Status Shadow::Impl::admit(int64_t request) {
  int32_t slot = kPadSlot;
  for (Lane& lane : lanes) {  // equal histories, so equal slots
    Result<int32_t> allocated = lane.pool.allocate();
    if (!allocated.ok()) return allocated.status();
    slot = *allocated;
    LaneRequest& sums = lane.requests[request];
    for (const LayerSpec& layer : stack.model.linear_layers) {
      sums.output.emplace_back(layer.heads.num_value_heads);
      sums.state.emplace_back(layer.heads.num_value_heads);
    }
  }
  slots[request] = slot;
  return {};
}

Status Shadow::Impl::run_row(Lane& lane, size_t index, int64_t layer) {
  const SampledRow& row = rows[index];
  const auto tokens = std::span<const TokenAt>(batch->tokens)
                          .subspan(static_cast<size_t>(row.row.first_token),
                                   static_cast<size_t>(row.row.row.tokens));
  // Generated again, not taken from the batch: a batch that changes its inputs is caught.
  // One token is less work than waking a second thread, and there are thousands of such calls.
  const int32_t threads = row.row.row.tokens == 1 ? 1 : options.threads;
  lane.runner.use_threads(threads);
  buffers.shape_for(stack.layer(layer), row.row.row.tokens);
  buffers.fill(stack.activations[static_cast<size_t>(layer)], 0, tokens, threads);
  return lane.runner.forward(layer, metadata[index], lane.pool, buffers);
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
  const double limit = !lane.judged ? 0.0 : lane.reload ? kHalfStateLimit : kF32Limit;
  judge(relative_rms(total.error, total.norm), limit, sums, request, layer, lane.judged,
        lane.judged ? summary.state : summary.free_state);
}

void Shadow::Impl::judge_output(Lane& lane, int64_t request, int64_t layer) {
  const ErrorSums& sums = lane.requests[request].output[static_cast<size_t>(layer)];
  const HeadSums total = sums.total();
  double limit = 0.0;
  if (lane.judged) {
    limit = options.io_dtype == DType::kF32
                ? kF32Limit
                : kRoundingFactor * relative_rms(total.rounding, total.norm);
  }
  judge(relative_rms(total.error, total.norm), limit, sums, request, layer, lane.judged,
        lane.judged ? summary.output : summary.free_output);
}

void Shadow::Impl::compare_row(Lane& lane, const SampledRow& row, int64_t layer,
                               const TensorView& out) {
  LaneRequest& sums = lane.requests[row.row.request];
  const auto l = static_cast<size_t>(layer);
  const int64_t first = row.row.first_token;
  add_output_errors(out.slice(0, first, first + row.row.row.tokens), buffers.out(), sums.output[l]);
  if (!lane.reload) return;
  sums.state[l] = ErrorSums(stack.layer(layer).heads.num_value_heads);
  add_state_errors(slot_view(pool.recurrent(layer), row.row.row.slot),
                   slot_view(lane.pool.recurrent(layer), row.slot), sums.state[l]);
  judge_state(lane, row.row.request, layer);
}

void Shadow::Impl::add_broken(std::string line) {
  ++summary.failures;
  if (summary.broken.size() < kMostBrokenLines) summary.broken.push_back(std::move(line));
}

void Shadow::Impl::compare_windows(Lane& lane, int64_t request, int32_t pool_slot,
                                   int32_t lane_slot) {
  for (int64_t layer = 0; layer < stack.num_layers(); ++layer) {
    if (!pool.conv_window(layer).defined()) continue;
    const TensorView actual = slot_view(pool.conv_window(layer), pool_slot);
    const TensorView expected = slot_view(lane.pool.conv_window(layer), lane_slot);
    if (std::memcmp(actual.data, expected.data, view_bytes(actual)) == 0) continue;
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
                              const ShadowOptions& options) {
  auto impl = std::make_unique<Impl>(stack, pool, options);
  LINESTATE_RETURN_IF_ERROR(impl->setup());
  return Shadow(std::move(impl));
}

int64_t Shadow::pool_bytes(const PoolSpec& spec, const ShadowOptions& options) {
  int64_t bytes = bytes_per_slot(spec);
  if (spec.state_dtype != DType::kF32) {
    PoolSpec free = spec;
    free.state_dtype = DType::kF32;
    bytes += bytes_per_slot(free);
  }
  return bytes * options.max_rows;
}

Shadow::Shadow(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Shadow::Shadow(Shadow&&) noexcept = default;
Shadow& Shadow::operator=(Shadow&&) noexcept = default;
Shadow::~Shadow() = default;

Status Shadow::begin_step(const BuiltBatch& batch) {
  impl_->batch = &batch;
  impl_->rows.clear();
  for (const BatchRow& row : batch.requests) {
    if (!is_sampled(row.request, impl_->options.fraction, impl_->options.seed)) continue;
    if (impl_->slots.count(row.request) == 0) LINESTATE_RETURN_IF_ERROR(impl_->admit(row.request));
    Impl::SampledRow sampled{row, impl_->slots[row.request]};
    Row alone = row.row;
    alone.slot = sampled.slot;
    ForwardBatch one;
    one.rows = {&alone, 1};
    const size_t index = impl_->rows.size();
    // The lanes' pools have the same slots, so one preparation serves them all.
    Lane& lane = impl_->lanes[0];
    LINESTATE_RETURN_IF_ERROR(
        impl_->metadata[index].prepare(one, lane.pool, lane.runner.context()));
    impl_->rows.push_back(sampled);
    impl_->summary.tokens += row.row.tokens;
  }
  return {};
}

void Shadow::before_layer(int64_t index) {
  for (Lane& lane : impl_->lanes) {
    if (!lane.reload) continue;
    for (const Impl::SampledRow& row : impl_->rows) {
      const TensorView from = slot_view(impl_->pool.recurrent(index), row.row.row.slot);
      const TensorView to = slot_view(lane.pool.recurrent(index), row.slot);
      std::memcpy(to.data, from.data, view_bytes(from));
    }
  }
}

Status Shadow::after_layer(int64_t index, const TensorView& out) {
  impl_->check_padding(index, out);
  for (size_t i = 0; i < impl_->rows.size(); ++i) {
    for (Lane& lane : impl_->lanes) {
      if (interrupted()) return Status(StatusCode::kCancelled, interrupt_message());
      LINESTATE_RETURN_IF_ERROR(impl_->run_row(lane, i, index));
      impl_->compare_row(lane, impl_->rows[i], index, out);
    }
  }
  return {};
}

Status Shadow::finish(int64_t request, int32_t pool_slot) {
  const auto found = impl_->slots.find(request);
  if (found == impl_->slots.end()) return {};
  const int32_t slot = found->second;
  for (Lane& lane : impl_->lanes) {
    LaneRequest& sums = lane.requests[request];
    for (int64_t layer = 0; layer < impl_->stack.num_layers(); ++layer) {
      impl_->judge_output(lane, request, layer);
      if (lane.reload) continue;  // judged after every call
      add_state_errors(slot_view(impl_->pool.recurrent(layer), pool_slot),
                       slot_view(lane.pool.recurrent(layer), slot),
                       sums.state[static_cast<size_t>(layer)]);
      impl_->judge_state(lane, request, layer);
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
