// The judge must let a right run pass and name what is wrong in a damaged one.
#include "cli/replay/shadow.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/replay/batch_builder.h"
#include "cli/replay/drafts.h"
#include "cli/replay/scheduler.h"

namespace linestate::cli {
namespace {

enum class Damage { kNone, kOutput, kNan, kState, kWindow, kPadding, kCommit, kCopy };

const std::vector<TraceRequest>& trace() {
  static const std::vector<TraceRequest> requests{{0, 150, 4, {1}}, {0, 40, 6, {2}}};
  return requests;
}

void add_to(const TensorView& view, int64_t index, double amount) {
  if (view.dtype == DType::kF32) {
    static_cast<float*>(view.data)[index] += static_cast<float>(amount);
  } else {  // far more than the limit in bf16 and f16 alike
    static_cast<uint16_t*>(view.data)[index] ^= 0x4000u;
  }
}

// Runs the two requests through tiny; the damage is done to layer 1, request 0, in step 2.
VerifySummary run(DType state_dtype, Damage damage, double fraction = 1.0,
                  SpeculationOptions speculation = {}) {
  const ModelConfig model = model_preset("tiny").value();
  const Result<LayerStack> stack = make_layer_stack(model, {});
  EXPECT_TRUE(stack.ok());
  Result<StatePool> pool = StatePool::create(make_pool_spec(model, state_dtype, DType::kBF16), 2);
  EXPECT_TRUE(pool.ok());
  ExecContext context;
  context.num_threads = 1;
  Result<LayerRunner> runner = LayerRunner::create(*stack, "auto", 200, *pool, context, 16);
  EXPECT_TRUE(runner.ok()) << runner.status().message();
  ShadowOptions options;
  options.fraction = fraction;
  options.max_rows = 2;
  options.max_tokens = 100;
  Result<Shadow> shadow = Shadow::create(*stack, *pool, trace(), options);
  EXPECT_TRUE(shadow.ok()) << shadow.status().message();
  Result<ForwardMetadata> metadata = ForwardMetadata::create(ForwardCapacity{4, 16, 0});
  LayerBuffers buffers(model, 200, DType::kBF16, DType::kBF16);
  Scheduler scheduler({{150, 4}, {40, 6}}, {100, 2});
  scheduler.arrive(0);
  scheduler.arrive(1);
  std::vector<int32_t> slots(2, kPadSlot);
  for (int64_t step = 0; !scheduler.idle(); ++step) {
    StepPlan plan = scheduler.plan();
    plan_drafts(speculation, trace(), step, plan);
    for (const int64_t request : plan.admitted) {
      slots[static_cast<size_t>(request)] = pool->allocate().value();
    }
    const BuiltBatch batch = build_batch(
        plan, step, trace(), [&](int64_t request) { return slots[static_cast<size_t>(request)]; });
    ForwardBatch forward;
    forward.rows = batch.rows;
    forward.token_capacity = batch.token_capacity;
    forward.parent = batch.parent;
    EXPECT_TRUE(metadata->prepare(forward, *pool, runner->context()).ok());
    EXPECT_TRUE(shadow->begin_step(batch, forward).ok());
    for (int64_t layer = 0; layer < stack->num_layers(); ++layer) {
      buffers.shape_for(stack->layer(layer), batch.token_capacity);
      buffers.fill(stack->activations[static_cast<size_t>(layer)], 0, batch.tokens, 1);
      shadow->before_layer(layer);
      EXPECT_TRUE(runner->forward(layer, *metadata, *pool, buffers).ok());
      const TensorView out = buffers.out();
      const int64_t first = batch.requests.front().first_token * out.stride[0];
      if (layer == 1 && step == 2) {
        if (damage == Damage::kOutput) add_to(out, first + 64, 1.0);
        if (damage == Damage::kNan) static_cast<uint16_t*>(out.data)[first] = 0x7fc0u;
        if (damage == Damage::kState) {
          add_to(pool->recurrent(layer).select(0, slots[0]), 2 * 64 * 64 + 5, 1.0);
        }
        if (damage == Damage::kWindow) {
          add_to(pool->conv_window(layer).select(0, slots[0]), 1, 1.0);
        }
      }
      if (damage == Damage::kPadding && layer == 1 && !batch.padding.empty()) {
        add_to(out, batch.padding[0].begin * out.stride[0], 1.0);
      }
      EXPECT_TRUE(shadow->after_layer(layer, out).ok());
    }
    std::vector<int32_t> accepted = batch.accepted;
    if (damage == Damage::kCommit && !accepted.empty()) {
      accepted[0] = accepted[0] > 0 ? accepted[0] - 1 : 1;
    }
    if (!accepted.empty()) {
      EXPECT_TRUE(runner->accept(*metadata, accepted).ok());
    }
    for (int64_t layer = 0; !accepted.empty() && layer < stack->num_layers(); ++layer) {
      EXPECT_TRUE(runner->commit(layer, *metadata, *pool).ok());
    }
    shadow->end_step();
    for (const int64_t request : scheduler.complete(plan)) {
      const int32_t slot = slots[static_cast<size_t>(request)];
      EXPECT_TRUE(shadow->finish(request, slot).ok());
      EXPECT_TRUE(pool->free(slot).ok());
    }
  }
  return shadow->summary();
}

TEST(Shadow, ARightRunPassesForEveryStateDtype) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const VerifySummary summary = run(dtype, Damage::kNone);
    EXPECT_TRUE(summary.ok()) << summary.failure();
    EXPECT_EQ(summary.requests, 2);
    EXPECT_EQ(summary.tokens, 200);
    EXPECT_GT(summary.output.error, 0.0);
    EXPECT_GT(summary.output.limit, 1e-3);
    EXPECT_LT(summary.output.limit, 2e-3) << "1.05 x the rounding of bf16";
    EXPECT_EQ(summary.free_state.request >= 0, dtype != DType::kF32);
  }
}

TEST(Shadow, WrongOutputNamesRequestLayerAndHead) {
  const VerifySummary summary = run(DType::kF32, Damage::kOutput);
  EXPECT_FALSE(summary.ok());
  EXPECT_EQ(summary.failures, 1);
  EXPECT_EQ(summary.output.request, 0);
  EXPECT_EQ(summary.output.layer, 1);
  EXPECT_EQ(summary.output.head, 1);
  EXPECT_NE(summary.failure().find("worst output: request 0, layer 1, head 1"), std::string::npos)
      << summary.failure();
}

TEST(Shadow, NanIsAFailure) {
  const VerifySummary summary = run(DType::kF32, Damage::kNan);
  EXPECT_EQ(summary.failures, 1);
  EXPECT_TRUE(summary.output.over());
}

TEST(Shadow, WrongStateIsFoundForEveryDtype) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const VerifySummary summary = run(dtype, Damage::kState);
    EXPECT_FALSE(summary.ok());
    EXPECT_TRUE(summary.state.over());
    EXPECT_EQ(summary.state.request, 0);
    EXPECT_EQ(summary.state.layer, 1);
    EXPECT_EQ(summary.state.head, 2);
  }
}

TEST(Shadow, WrongWindowIsFound) {
  // The window slides on, so what is left of one damaged input is in the outputs; the last step's
  // window is compared bit for bit.
  const VerifySummary summary = run(DType::kF32, Damage::kWindow);
  EXPECT_FALSE(summary.ok()) << "a damaged window must show";
  EXPECT_NE(summary.failure().find("request 0, layer 1"), std::string::npos) << summary.failure();
}

TEST(Shadow, PaddingThatIsNotZeroIsFound) {
  const VerifySummary summary = run(DType::kF32, Damage::kPadding);
  EXPECT_FALSE(summary.ok());
  ASSERT_FALSE(summary.broken.empty());
  EXPECT_EQ(summary.broken[0], "layer 1: output of padding is not zero");
}

TEST(Shadow, AWrongCommitIsFoundForEveryDtype) {
  SpeculationOptions tree;
  tree.kind = Speculation::kTree;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const VerifySummary right = run(dtype, Damage::kNone, 1.0, tree);
    EXPECT_TRUE(right.ok()) << right.failure();
    EXPECT_EQ(right.tokens, 200) << "accepted tokens only";
    EXPECT_FALSE(run(dtype, Damage::kCommit, 1.0, tree).ok());
  }
}

// One request leaves a snapshot, another starts from it.
class SnapshotRun {
 public:
  explicit SnapshotRun(DType state_dtype)
      : model_(model_preset("tiny").value()),
        stack_(make_layer_stack(model_, {}).value()),
        pool_(StatePool::create(make_pool_spec(model_, state_dtype, DType::kBF16), 4).value()),
        runner_(LayerRunner::create(stack_, "auto", 200, pool_, {}, 0).value()),
        metadata_(ForwardMetadata::create(ForwardCapacity{4, 0, 1}).value()),
        buffers_(model_, 200, DType::kBF16, DType::kBF16),
        shadow_(Shadow::create(stack_, pool_, requests_, options()).value()) {}

  /// `damage` is applied before the judge's `when`: a step begins, or a layer has run.
  VerifySummary run(Damage damage) {
    ForwardBatch first;
    const std::vector<SnapshotRequest> snapshots{{0, 64, 3}};
    first.snapshots = snapshots;
    step({{0, 0, 130}}, first, damage == Damage::kState);
    EXPECT_TRUE(shadow_.finish(0, 0).ok());
    ForwardBatch second;
    second.pre.copy.push_back({3, 1});
    step({{1, 64, 20}}, second, damage == Damage::kCopy);
    EXPECT_TRUE(shadow_.finish(1, 1).ok());
    return shadow_.summary();
  }

 private:
  static ShadowOptions options() {
    ShadowOptions options;
    options.fraction = 1.0;
    options.max_rows = 2;
    options.max_tokens = 200;
    options.snapshots = true;
    return options;
  }

  void step(std::vector<ScheduledRow> extend, ForwardBatch& forward, bool damaged) {
    StepPlan plan;
    plan.extend = std::move(extend);
    const BuiltBatch batch = build_batch(
        plan, 0, requests_, [](int64_t request) { return static_cast<int32_t>(request); });
    forward.rows = batch.rows;
    ASSERT_TRUE(metadata_.prepare(forward, pool_, runner_.context()).ok());
    if (damaged && !forward.pre.empty()) add_to(pool_.recurrent(2).select(0, 1), 7, 1.0);
    ASSERT_TRUE(shadow_.begin_step(batch, forward).ok());
    for (int64_t layer = 0; layer < stack_.num_layers(); ++layer) {
      buffers_.shape_for(stack_.layer(layer), batch.token_capacity);
      buffers_.fill(stack_.activations[static_cast<size_t>(layer)], 0, batch.tokens, 1);
      shadow_.before_layer(layer);
      ASSERT_TRUE(runner_.forward(layer, metadata_, pool_, buffers_).ok());
      if (damaged && layer == 2 && forward.pre.empty()) {
        add_to(pool_.recurrent(layer).select(0, 3), 7, 1.0);
      }
      ASSERT_TRUE(shadow_.after_layer(layer, buffers_.out()).ok());
    }
    shadow_.end_step();
  }

  const std::vector<TraceRequest> requests_{{0, 130, 1, {1}}, {0, 83, 1, {1}}};
  ModelConfig model_;
  LayerStack stack_;
  StatePool pool_;
  LayerRunner runner_;
  ForwardMetadata metadata_;
  LayerBuffers buffers_;
  Shadow shadow_;
};

TEST(Shadow, SnapshotsAndWhatStartsFromThemAreJudgedForEveryDtype) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const VerifySummary right = SnapshotRun(dtype).run(Damage::kNone);
    EXPECT_TRUE(right.ok()) << right.failure();
    EXPECT_EQ(right.requests, 2);
    const VerifySummary taken = SnapshotRun(dtype).run(Damage::kState);
    EXPECT_FALSE(taken.ok()) << "a wrong snapshot of " << dtype_name(dtype);
    EXPECT_TRUE(taken.state.over());
    EXPECT_EQ(taken.state.layer, 2);
    EXPECT_EQ(taken.state.request, dtype == DType::kF32 ? 1 : 0) << "f32: judged as it is used";
    const VerifySummary copied = SnapshotRun(dtype).run(Damage::kCopy);
    EXPECT_NE(copied.failure().find("request 1: the state it starts from is not its snapshot's"),
              std::string::npos)
        << copied.failure();
  }
}

TEST(Shadow, SamplingIsDeterministicAndProportional) {
  int64_t sampled = 0;
  for (int64_t request = 0; request < 10000; ++request) {
    EXPECT_FALSE(is_sampled(request, 0.0, 1));
    EXPECT_TRUE(is_sampled(request, 1.0, 1));
    EXPECT_EQ(is_sampled(request, 0.3, 1), is_sampled(request, 0.3, 1));
    sampled += is_sampled(request, 0.3, 1) ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(sampled), 3000.0, 200.0);
  EXPECT_EQ(run(DType::kF32, Damage::kOutput, 0.0).requests, 0);
}

}  // namespace
}  // namespace linestate::cli
