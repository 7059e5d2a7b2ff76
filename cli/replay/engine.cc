#include "cli/replay/engine.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "cli/interrupt.h"
#include "cli/replay/batch_builder.h"
#include "cli/replay/device_copies.h"
#include "cli/replay/drafts.h"
#include "cli/replay/layer_buffers.h"
#include "cli/replay/layer_stack.h"
#include "cli/replay/output_sum.h"
#include "cli/replay/prefix_store.h"
#include "cli/replay/scheduler.h"
#include "linestate/device_staging.h"
#include "linestate/forward_batch.h"
#include "linestate/state_pool.h"
#include "linestate/trace_range.h"

namespace linestate::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Adds the time of a scope to a total.
class Timed {
 public:
  explicit Timed(double& total) : total_(total), start_(Clock::now()) {}
  ~Timed() { total_ += seconds_since(start_); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double& total_;
  Clock::time_point start_;
};

Status cancelled() { return Status(StatusCode::kCancelled, interrupt_message()); }

std::vector<RequestLengths> lengths_of(const std::vector<TraceRequest>& trace) {
  std::vector<RequestLengths> lengths;
  for (const TraceRequest& request : trace) {
    lengths.push_back({request.input_length, request.output_length});
  }
  return lengths;
}

int64_t tokens_of(const std::vector<TraceRequest>& trace) {
  int64_t tokens = 0;
  for (const TraceRequest& request : trace) tokens += request.total_tokens();
  return tokens;
}

class Run {
 public:
  /// The pool has slots beyond `slots` for the prefix cache.
  Run(const ReplaySettings& settings, LayerStack stack, StatePool pool, int64_t slots,
      ProgressStyle style)
      : settings_(settings),
        slots_for_requests_(slots),
        stack_(std::move(stack)),
        pool_(std::move(pool)),
        buffers_(stack_.model, max_tokens(settings, slots), settings.io_dtype, settings.io_dtype),
        scheduler_(lengths_of(settings.trace), {settings.options.prefill_budget, slots}),
        progress_(style, static_cast<int64_t>(settings.trace.size()), tokens_of(settings.trace)) {
    result_.queue.resize(settings.trace.size());
    arrived_.resize(settings.trace.size());
  }

  static int64_t max_tokens(const ReplaySettings& settings, int64_t slots) {
    const int64_t a_row = std::max<int64_t>(verify_width(settings), 1);
    const int64_t buckets = settings.graphs ? slots : 0;  // of decode rows, beside full verify rows
    return settings.options.prefill_budget + slots * a_row + buckets + kMostPaddingTokens;
  }
  /// Tokens of a verify row; 0 without speculation.
  static int64_t verify_width(const ReplaySettings& settings) {
    return settings.speculation.kind == Speculation::kOff ? 0 : settings.options.draft_length;
  }
  static int64_t record_bytes(const ReplaySettings& settings, const ModelConfig& model,
                              int64_t slots) {
    return VerifyRecords::bytes_per_token(model, settings.io_dtype) * slots *
           verify_width(settings);
  }
  static ShadowOptions shadow_options(const ReplaySettings& settings, int64_t slots) {
    ShadowOptions options;
    options.fraction = settings.options.verify;
    options.max_rows = slots;
    options.max_tokens = std::max(settings.options.prefill_budget, verify_width(settings));
    options.io_dtype = settings.io_dtype;
    options.shard = settings.stack.shard;
    options.seed = settings.stack.seed;
    options.threads = settings.threads;
    options.snapshots = settings.prefix_cache;
    return options;
  }

  Status prepare(DeviceStream stream);
  Result<ReplayResult> run();

 private:
  bool clocked() const { return settings_.options.speed > 0.0; }
  double arrival_s(size_t request) const {
    return static_cast<double>(settings_.trace[request].timestamp_ms) * 1e-3 /
           settings_.options.speed;
  }
  void take_arrivals();
  void wait_for_arrival();
  Status step();
  ForwardCapacity capacity() const;
  StepPlan plan_step();
  Status prepare_batch(const BuiltBatch& batch, ForwardBatch& forward, StepSample& sample);
  Status run_layers(const BuiltBatch& batch, StepSample& sample);
  Status commit(const BuiltBatch& batch, StepSample& sample);
  void count(const StepPlan& plan, StepSample& sample);
  void report_memory();
  void generate(const BuiltBatch& batch, int64_t layer);
  Status retire(const std::vector<int64_t>& requests);
  Status fold(int32_t slot);
  /// `call` queues work of one layer: as it is, or for a batch with a shape captured the first time
  /// that its shape comes and replayed ever after.
  Status replay_or_run(const BuiltBatch& batch, int64_t layer, bool commit,
                       const std::function<Status()>& call);

  const ReplaySettings& settings_;
  int64_t slots_for_requests_ = 0;
  LayerStack stack_;
  StatePool pool_;
  LayerBuffers buffers_;
  Scheduler scheduler_;
  Progress progress_;
  std::optional<LayerRunner> runner_;
  std::optional<ForwardMetadata> metadata_;
  std::optional<Shadow> shadow_;
  std::optional<PrefixStore> store_;
  OutputSum outputs_;
  DeviceStream stream_;
  using GraphKey =
      std::tuple<int64_t, int64_t, int64_t, bool>;  // decode, verify rows, layer, commit
  std::map<GraphKey, DeviceGraph> graphs_;
  DeviceStatusBlock device_status_;
  std::map<int64_t, int32_t> slots_;  // request -> slot
  size_t next_arrival_ = 0;
  std::vector<double> arrived_;  // per request: step or second
  int64_t step_ = 0;
  int64_t tokens_done_ = 0;
  Clock::time_point start_;
  ReplayResult result_;
};

ForwardCapacity Run::capacity() const {
  ForwardCapacity capacity;
  capacity.rows = (settings_.graphs ? 2 : 1) * slots_for_requests_ + kMostPaddingRows;
  capacity.verify_tokens = slots_for_requests_ * verify_width(settings_);
  capacity.snapshots = store_ ? slots_for_requests_ : 0;
  return capacity;
}

Status Run::prepare(DeviceStream stream) {
  const Device device = settings_.device.device;
  stream_ = std::move(stream);
  LINESTATE_RETURN_IF_ERROR(buffers_.use_device(device));
  Result<DeviceStatusBlock> status = DeviceStatusBlock::create(device);
  if (!status.ok()) return status.status();
  device_status_ = std::move(status).value();
  ExecContext context;
  context.device = device;
  context.stream = stream_.handle();
  context.num_threads = settings_.threads;
  context.status = device_status_.get();
  context.check_finite = settings_.options.verify > 0.0;
  Result<LayerRunner> runner = LayerRunner::create(
      stack_, settings_.options.kernel, max_tokens(settings_, slots_for_requests_), pool_, context,
      slots_for_requests_ * verify_width(settings_), settings_.io_dtype);
  if (!runner.ok()) return runner.status();
  runner_.emplace(std::move(runner).value());
  if (settings_.prefix_cache) {
    Result<PrefixStore> store = PrefixStore::create(pool_, pool_.num_slots() - slots_for_requests_);
    if (!store.ok()) return store.status();
    store_.emplace(std::move(store).value());
  }
  Result<ForwardMetadata> metadata = ForwardMetadata::create(capacity(), device);
  if (!metadata.ok()) return metadata.status();
  metadata_.emplace(std::move(metadata).value());
  if (settings_.options.verify > 0.0) {
    ShadowOptions shadow_options = Run::shadow_options(settings_, slots_for_requests_);
    shadow_options.stream = stream_.handle();
    Result<Shadow> shadow = Shadow::create(stack_, pool_, settings_.trace, shadow_options);
    if (!shadow.ok()) return shadow.status();
    shadow_.emplace(std::move(shadow).value());
  }
  return {};
}

void Run::take_arrivals() {
  const double now = clocked() ? seconds_since(start_) : static_cast<double>(step_);
  while (next_arrival_ < settings_.trace.size()) {
    if (clocked() && arrival_s(next_arrival_) > now) return;
    arrived_[next_arrival_] = clocked() ? arrival_s(next_arrival_) : now;
    scheduler_.arrive(static_cast<int64_t>(next_arrival_++));
  }
}

void Run::wait_for_arrival() {
  const Timed timed(result_.idle_s);
  progress_.waiting(arrival_s(next_arrival_) - seconds_since(start_));
  while (!interrupted()) {
    const double left = arrival_s(next_arrival_) - seconds_since(start_);
    if (left <= 0.0) return;
    constexpr double kNap = 0.05;  // how late an interrupt may be noticed
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, kNap)));
  }
}

void Run::generate(const BuiltBatch& batch, int64_t layer) {
  const Timed timed(result_.generation_s);
  buffers_.shape_for(stack_.layer(layer), batch.token_capacity);
  buffers_.fill(stack_.activations[static_cast<size_t>(layer)], 0, batch.tokens, settings_.threads);
  for (const BuiltBatch::TokenRange& range : batch.padding) {
    buffers_.poison_inputs(range.begin, range.end);
  }
  if (shadow_) buffers_.poison_output();
}

Status Run::prepare_batch(const BuiltBatch& batch, ForwardBatch& forward, StepSample& sample) {
  forward.rows = batch.rows;
  forward.token_capacity = batch.token_capacity;
  forward.shape = batch.shape;
  if (settings_.speculation.kind == Speculation::kTree) forward.parent = batch.parent;
  if (store_) LINESTATE_RETURN_IF_ERROR(store_->add_work(batch, forward));
  const Timed timed(sample.backend_s);
  LINESTATE_RETURN_IF_ERROR(metadata_->prepare(forward, pool_, runner_->context()));
  if (store_) store_->prepared();
  return {};
}

Status Run::replay_or_run(const BuiltBatch& batch, int64_t layer, bool commit,
                          const std::function<Status()>& call) {
  if (!batch.shape.defined()) return call();
  const GraphKey key{batch.shape.decode.rows, batch.shape.verify.rows, layer, commit};
  auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    const Device device = settings_.device.device;
    LINESTATE_RETURN_IF_ERROR(DeviceGraph::begin_capture(device, stream_.handle()));
    const Status queued = call();
    Result<DeviceGraph> graph = DeviceGraph::end_capture(device, stream_.handle());
    LINESTATE_RETURN_IF_ERROR(queued);
    if (!graph.ok()) return graph.status();
    found = graphs_.emplace(key, std::move(graph).value()).first;
  }
  ++result_.graph_launches;
  return found->second.launch(stream_.handle());
}

Status Run::commit(const BuiltBatch& batch, StepSample& sample) {
  if (batch.accepted.empty()) return {};
  const Timed timed(sample.backend_s);
  LINESTATE_RETURN_IF_ERROR(runner_->accept(*metadata_, batch.accepted));
  for (int64_t layer = 0; layer < stack_.num_layers(); ++layer) {
    LINESTATE_RETURN_IF_ERROR(replay_or_run(
        batch, layer, true, [&] { return runner_->commit(layer, *metadata_, pool_); }));
  }
  return synchronize(settings_.device.device, stream_.handle());
}

Status Run::run_layers(const BuiltBatch& batch, StepSample& sample) {
  ForwardBatch forward;
  LINESTATE_RETURN_IF_ERROR(prepare_batch(batch, forward, sample));
  if (shadow_) {
    const Timed timed(result_.verify_s);
    LINESTATE_RETURN_IF_ERROR(shadow_->begin_step(batch, forward));
  }
  const TraceRange range("step");
  for (int64_t layer = 0; layer < stack_.num_layers(); ++layer) {
    if (interrupted()) return cancelled();
    generate(batch, layer);
    if (shadow_) {
      const Timed timed(result_.verify_s);
      shadow_->before_layer(layer);
    }
    {
      const Timed timed(sample.backend_s);
      LINESTATE_RETURN_IF_ERROR(buffers_.upload(stream_.handle()));
      LINESTATE_RETURN_IF_ERROR(replay_or_run(batch, layer, false, [&] {
        return runner_->forward(layer, *metadata_, pool_, buffers_);
      }));
      LINESTATE_RETURN_IF_ERROR(buffers_.download(stream_.handle()));
    }
    if (shadow_) {
      const Timed timed(result_.verify_s);
      LINESTATE_RETURN_IF_ERROR(shadow_->after_layer(layer, buffers_.out()));
    }
    outputs_.add(batch, settings_.trace, layer, buffers_.out());
  }
  LINESTATE_RETURN_IF_ERROR(commit(batch, sample));
  if (store_) LINESTATE_RETURN_IF_ERROR(store_->collect(batch, *metadata_));
  if (shadow_) {
    const Timed timed(result_.verify_s);
    shadow_->end_step();
  }
  return {};
}

// A slot's pending records into its state, so that it may be looked at.
Status Run::fold(int32_t slot) {
  if (!pool_.has_replay()) return {};
  DeviceCopies copies(settings_.device.device);
  const Result<ConstTensorView> ids = copies.put(ConstTensorView(&slot, DType::kI32, {1}));
  if (!ids.ok()) return ids.status();
  LINESTATE_RETURN_IF_ERROR(pool_.fold(*ids, runner_->context()));
  return synchronize(settings_.device.device, stream_.handle());
}

Status Run::retire(const std::vector<int64_t>& requests) {
  for (const int64_t request : requests) {
    const int32_t slot = slots_[request];
    if (shadow_) {
      const Timed timed(result_.verify_s);
      LINESTATE_RETURN_IF_ERROR(fold(slot));
      LINESTATE_RETURN_IF_ERROR(shadow_->finish(request, slot));
    }
    // Every kernel of the step has returned: nothing to wait for.
    LINESTATE_RETURN_IF_ERROR(pool_.retire(slot, SlotEvent{}));
    slots_.erase(request);
  }
  return {};
}

StepPlan Run::plan_step() {
  StepPlan plan = scheduler_.plan([&](int64_t request) -> int64_t {
    if (!store_) return 0;
    const int64_t cached = store_->admit(settings_.trace[static_cast<size_t>(request)], request);
    tokens_done_ += cached;
    return cached;
  });
  plan_drafts(settings_.speculation, settings_.trace, step_, plan);
  return plan;
}

void Run::count(const StepPlan& plan, StepSample& sample) {
  for (const ScheduledRow& row : plan.extend) sample.prefill_tokens += row.tokens;
  sample.decode_rows = static_cast<int64_t>(plan.decode.size() + plan.verify.size());
  sample.decode_tokens = static_cast<int64_t>(plan.decode.size());
  SpeculationCounts& counts = result_.speculation;
  for (const DraftedRow& drafted : plan.verify) {
    sample.decode_tokens += drafted.row.tokens;
    ++counts.rows;
    counts.drafted += drafted.draft.drafted();
    counts.accepted += drafted.row.tokens - 1;
  }
}

void Run::report_memory() {
  result_.slots = slots_for_requests_;
  result_.cache_slots = pool_.num_slots() - slots_for_requests_;
  result_.bytes_per_slot = bytes_per_slot(pool_.spec());
  PoolSpec plain = pool_.spec();
  plain.replay = {};
  result_.ring_bytes_per_slot = result_.bytes_per_slot - bytes_per_slot(plain);
  result_.verify_record_bytes = record_bytes(settings_, stack_.model, slots_for_requests_);
}

Status Run::step() {
  const StepPlan plan = plan_step();
  const double now = clocked() ? seconds_since(start_) : static_cast<double>(step_);
  for (const int64_t request : plan.admitted) {
    Result<int32_t> slot = pool_.allocate();
    if (!slot.ok()) return slot.status();
    slots_[request] = *slot;
    result_.queue[static_cast<size_t>(request)] = now - arrived_[static_cast<size_t>(request)];
  }
  const auto slot_of = [&](int64_t request) { return slots_[request]; };
  const BatchShape shape = settings_.graphs
                               ? graph_shape(plan, slots_for_requests_, verify_width(settings_))
                               : BatchShape{};
  const BuiltBatch batch = shape.defined()
                               ? build_shaped_batch(plan, shape, settings_.trace, slot_of)
                               : build_batch(plan, step_, settings_.trace, slot_of);
  StepSample sample;
  sample.running = scheduler_.running();
  count(plan, sample);
  LINESTATE_RETURN_IF_ERROR(run_layers(batch, sample));
  LINESTATE_RETURN_IF_ERROR(retire(scheduler_.complete(plan)));
  sample.end_s = seconds_since(start_);
  result_.backend_s += sample.backend_s;
  result_.steps.push_back(sample);
  tokens_done_ += sample.prefill_tokens + sample.decode_tokens;
  progress_.update(scheduler_.finished(), tokens_done_);
  ++step_;
  return {};
}

Result<ReplayResult> Run::run() {
  start_ = Clock::now();
  while (next_arrival_ < settings_.trace.size() || !scheduler_.idle()) {
    if (interrupted()) return cancelled();
    take_arrivals();
    if (scheduler_.idle()) {
      wait_for_arrival();
      continue;
    }
    LINESTATE_RETURN_IF_ERROR(step());
  }
  if (interrupted()) return cancelled();
  result_.wall_s = seconds_since(start_);
  result_.requests = static_cast<int64_t>(settings_.trace.size());
  for (const TraceRequest& request : settings_.trace) {
    result_.input_tokens += request.input_length;
    result_.output_tokens += request.output_length;
  }
  report_memory();
  if (store_) result_.cache = store_->stats();
  result_.graphs = static_cast<int64_t>(graphs_.size());
  result_.outputs_sum = outputs_.value();
  for (int64_t layer = 0; layer < stack_.num_layers(); ++layer) {
    if (!stack_.with_norm(layer)) ++result_.layers_without_norm;
  }
  if (shadow_) result_.verify = shadow_->summary();
  DeviceStatus status;
  LINESTATE_RETURN_IF_ERROR(device_status_.read(status, stream_.handle()));
  result_.device_status = status.describe();
  return std::move(result_);
}

}  // namespace

Result<ReplayResult> run_replay(const ReplaySettings& settings, ProgressStyle style) {
  Result<ModelConfig> local = shard_model(settings.model, settings.stack.shard);
  if (!local.ok()) return local.status();
  PoolSpec spec = make_pool_spec(*local, settings.state_dtype, settings.io_dtype);
  spec.replay.length = settings.options.replay_ring;
  spec.replay.dtype = settings.replay_dtype;
  const int64_t slot_bytes = bytes_per_slot(spec);
  Result<int64_t> slots = choose_slots(settings.options, slot_bytes);
  if (!slots.ok()) return slots.status();
  Result<int64_t> cache_slots = choose_cache_slots(settings, *slots, slot_bytes);
  if (!cache_slots.ok()) return cache_slots.status();
  const int64_t tokens = Run::max_tokens(settings, *slots);
  int64_t needed = (*slots + *cache_slots) * slot_bytes +
                   Run::record_bytes(settings, *local, *slots) +
                   LayerBuffers::bytes(*local, tokens, settings.io_dtype, settings.io_dtype);
  if (settings.options.verify > 0.0) {
    needed += Shadow::pool_bytes(spec, Run::shadow_options(settings, *slots)) +
              LayerBuffers::bytes(*local, Run::shadow_options(settings, *slots).max_tokens,
                                  settings.io_dtype, DType::kF32);
  }
  LINESTATE_RETURN_IF_ERROR(check_memory(needed, available_memory()));
  Result<LayerStack> stack = make_layer_stack(settings.model, settings.stack);
  if (!stack.ok()) return stack.status();
  spec.replay.slopes = stack->slopes();
  Result<StatePool> pool = StatePool::create(spec, *slots + *cache_slots, settings.device.device);
  if (!pool.ok()) return pool.status();
  Run run(settings, std::move(stack).value(), std::move(pool).value(), *slots, style);
  Result<DeviceStream> stream = DeviceStream::create(settings.device.device);
  if (!stream.ok()) return stream.status();
  LINESTATE_RETURN_IF_ERROR(run.prepare(std::move(stream).value()));
  return run.run();
}

}  // namespace linestate::cli
