#include "cli/replay/engine.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "cli/interrupt.h"
#include "cli/replay/batch_builder.h"
#include "cli/replay/layer_buffers.h"
#include "cli/replay/layer_stack.h"
#include "cli/replay/scheduler.h"
#include "linestate/forward_batch.h"
#include "linestate/state_pool.h"

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
  Run(const ReplaySettings& settings, LayerStack stack, StatePool pool, ProgressStyle style)
      : settings_(settings),
        stack_(std::move(stack)),
        pool_(std::move(pool)),
        buffers_(stack_.model, max_tokens(settings, pool_.num_slots()), settings.io_dtype,
                 settings.io_dtype),
        scheduler_(lengths_of(settings.trace),
                   {settings.options.prefill_budget, pool_.num_slots()}),
        progress_(style, static_cast<int64_t>(settings.trace.size()), tokens_of(settings.trace)) {
    result_.queue.resize(settings.trace.size());
    arrived_.resize(settings.trace.size());
  }

  static int64_t max_tokens(const ReplaySettings& settings, int64_t slots) {
    return settings.options.prefill_budget + slots + kMostPaddingTokens;
  }
  static ShadowOptions shadow_options(const ReplaySettings& settings, int64_t slots) {
    ShadowOptions options;
    options.fraction = settings.options.verify;
    options.max_rows = slots;
    options.max_tokens = settings.options.prefill_budget;
    options.io_dtype = settings.io_dtype;
    options.shard = settings.stack.shard;
    options.seed = settings.stack.seed;
    options.threads = settings.threads;
    return options;
  }

  Status prepare();
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
  Status run_layers(const BuiltBatch& batch, StepSample& sample);
  void generate(const BuiltBatch& batch, int64_t layer);
  Status retire(const std::vector<int64_t>& requests);

  const ReplaySettings& settings_;
  LayerStack stack_;
  StatePool pool_;
  LayerBuffers buffers_;
  Scheduler scheduler_;
  Progress progress_;
  std::optional<LayerRunner> runner_;
  std::optional<ForwardMetadata> metadata_;
  std::optional<Shadow> shadow_;
  DeviceStatus device_status_;
  std::map<int64_t, int32_t> slots_;  // request -> slot
  size_t next_arrival_ = 0;
  std::vector<double> arrived_;  // per request: step or second
  int64_t step_ = 0;
  int64_t tokens_done_ = 0;
  Clock::time_point start_;
  ReplayResult result_;
};

Status Run::prepare() {
  ExecContext context;
  context.num_threads = settings_.threads;
  context.status = &device_status_;
  context.check_finite = settings_.options.verify > 0.0;
  Result<LayerRunner> runner = LayerRunner::create(
      stack_, settings_.options.kernel, max_tokens(settings_, pool_.num_slots()), pool_, context);
  if (!runner.ok()) return runner.status();
  runner_.emplace(std::move(runner).value());
  Result<ForwardMetadata> metadata = ForwardMetadata::create(pool_.num_slots() + kMostPaddingRows);
  if (!metadata.ok()) return metadata.status();
  metadata_.emplace(std::move(metadata).value());
  if (settings_.options.verify > 0.0) {
    Result<Shadow> shadow =
        Shadow::create(stack_, pool_, shadow_options(settings_, pool_.num_slots()));
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

Status Run::run_layers(const BuiltBatch& batch, StepSample& sample) {
  ForwardBatch forward;
  forward.rows = batch.rows;
  forward.token_capacity = batch.token_capacity;
  {
    const Timed timed(sample.backend_s);
    LINESTATE_RETURN_IF_ERROR(metadata_->prepare(forward, pool_, runner_->context()));
  }
  if (shadow_) {
    const Timed timed(result_.verify_s);
    LINESTATE_RETURN_IF_ERROR(shadow_->begin_step(batch));
  }
  for (int64_t layer = 0; layer < stack_.num_layers(); ++layer) {
    if (interrupted()) return cancelled();
    generate(batch, layer);
    if (shadow_) {
      const Timed timed(result_.verify_s);
      shadow_->before_layer(layer);
    }
    {
      const Timed timed(sample.backend_s);
      LINESTATE_RETURN_IF_ERROR(runner_->forward(layer, *metadata_, pool_, buffers_));
    }
    if (shadow_) {
      const Timed timed(result_.verify_s);
      LINESTATE_RETURN_IF_ERROR(shadow_->after_layer(layer, buffers_.out()));
    }
  }
  return {};
}

Status Run::retire(const std::vector<int64_t>& requests) {
  for (const int64_t request : requests) {
    const int32_t slot = slots_[request];
    if (shadow_) {
      const Timed timed(result_.verify_s);
      LINESTATE_RETURN_IF_ERROR(shadow_->finish(request, slot));
    }
    // Every kernel of the step has returned: nothing to wait for.
    LINESTATE_RETURN_IF_ERROR(pool_.retire(slot, SlotEvent{}));
    slots_.erase(request);
  }
  return {};
}

Status Run::step() {
  const StepPlan plan = scheduler_.plan();
  const double now = clocked() ? seconds_since(start_) : static_cast<double>(step_);
  for (const int64_t request : plan.admitted) {
    Result<int32_t> slot = pool_.allocate();
    if (!slot.ok()) return slot.status();
    slots_[request] = *slot;
    result_.queue[static_cast<size_t>(request)] = now - arrived_[static_cast<size_t>(request)];
  }
  const BuiltBatch batch =
      build_batch(plan, step_, settings_.trace, [&](int64_t request) { return slots_[request]; });
  StepSample sample;
  sample.running = scheduler_.running();
  for (const ScheduledRow& row : plan.extend) sample.prefill_tokens += row.tokens;
  sample.decode_tokens = static_cast<int64_t>(plan.decode.size());
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
  result_.slots = pool_.num_slots();
  result_.bytes_per_slot = bytes_per_slot(pool_.spec());
  for (int64_t layer = 0; layer < stack_.num_layers(); ++layer) {
    if (!stack_.with_norm(layer)) ++result_.layers_without_norm;
  }
  if (shadow_) result_.verify = shadow_->summary();
  result_.device_status = device_status_.describe();
  return std::move(result_);
}

}  // namespace

Result<ReplayResult> run_replay(const ReplaySettings& settings, ProgressStyle style) {
  Result<ModelConfig> local = shard_model(settings.model, settings.stack.shard);
  if (!local.ok()) return local.status();
  const PoolSpec spec = make_pool_spec(*local, settings.state_dtype, settings.io_dtype);
  const int64_t slot_bytes = bytes_per_slot(spec);
  Result<int64_t> slots = choose_slots(settings.options, slot_bytes);
  if (!slots.ok()) return slots.status();
  const int64_t tokens = Run::max_tokens(settings, *slots);
  int64_t needed = *slots * slot_bytes +
                   LayerBuffers::bytes(*local, tokens, settings.io_dtype, settings.io_dtype);
  if (settings.options.verify > 0.0) {
    needed += Shadow::pool_bytes(spec, Run::shadow_options(settings, *slots)) +
              LayerBuffers::bytes(*local, settings.options.prefill_budget, settings.io_dtype,
                                  DType::kF32);
  }
  LINESTATE_RETURN_IF_ERROR(check_memory(needed, available_memory()));
  Result<LayerStack> stack = make_layer_stack(settings.model, settings.stack);
  if (!stack.ok()) return stack.status();
  Result<StatePool> pool = StatePool::create(spec, *slots);
  if (!pool.ok()) return pool.status();
  Run run(settings, std::move(stack).value(), std::move(pool).value(), style);
  LINESTATE_RETURN_IF_ERROR(run.prepare());
  return run.run();
}

}  // namespace linestate::cli
