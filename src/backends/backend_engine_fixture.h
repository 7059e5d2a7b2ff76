// An engine in small for tests of the backends: pool, metadata, both backends, workspace, records.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend_fixture.h"
#include "linestate/verify_records.h"
#include "testing/compare.h"

namespace linestate::testing {

struct EngineOptions {
  DType state = DType::kF32;
  DType io = DType::kBF16;
  std::string kernel = "auto";
  int threads = 0;
  int64_t replay_length = 1;
  DType replay_dtype = DType::kF32;
};

/// What a step asks for besides its pieces.
struct StepExtras {
  int64_t capacity = 0;
  std::vector<int32_t> parent;
  std::vector<SnapshotRequest> snapshots;
  DeferredSlotWork pre;
};

/// A pool of the two layers, with rings where the options ask for them.
inline PoolSpec engine_pool_spec(const TwoLayers& layers, const EngineOptions& options) {
  PoolSpec spec = make_pool_spec(layers.model(), options.state, options.io);
  spec.replay.length = options.replay_length;
  spec.replay.dtype = options.replay_dtype;
  const ConstTensorView slopes = layers.lightning_weights().slopes;
  const auto* values = static_cast<const float*>(slopes.data);
  spec.replay.slopes = {{}, {values, values + slopes.shape[0]}};
  return spec;
}

class Engine {
 public:
  static constexpr int64_t kSlots = 8;

  explicit Engine(EngineOptions options = {})
      : layers_(options.io),
        options_(std::move(options)),
        pool_(*StatePool::create(engine_pool_spec(layers_, options_), kSlots)),
        metadata_(*ForwardMetadata::create(ForwardCapacity{16, 256, 16})),
        records_(*VerifyRecords::create(layers_.model(), options_.io, 256)) {
    for (const TensorView& plane : pool_.planes()) fill_nan(plane);  // dirty memory
    context_.num_threads = options_.threads;
  }
  Engine(DType state, DType io, std::string kernel = "auto", int threads = 0)
      : Engine(EngineOptions{state, io, std::move(kernel), threads, 1, DType::kF32}) {}

  StatePool& pool() { return pool_; }
  void replace_pool(StatePool pool) { pool_ = std::move(pool); }
  TwoLayers& layers() { return layers_; }
  const ForwardMetadata& metadata() const { return metadata_; }
  ExecContext& context() { return context_; }

  Status run(const std::vector<Piece>& pieces, int64_t capacity = 0) {
    StepExtras extras;
    extras.capacity = capacity;
    return run(pieces, extras);
  }

  Status run(const std::vector<Piece>& pieces, const StepExtras& extras) {
    std::vector<Row> rows;
    for (const Piece& piece : pieces) rows.push_back(piece.row);
    ForwardBatch batch;
    batch.rows = rows;
    batch.token_capacity = extras.capacity;
    batch.parent = extras.parent;
    batch.snapshots = extras.snapshots;
    batch.pre = extras.pre;
    LINESTATE_RETURN_IF_ERROR(metadata_.prepare(batch, pool_, context_));
    const int64_t tokens = metadata_.token_capacity();
    layers_.gather(pieces, tokens);
    LINESTATE_RETURN_IF_ERROR(make_workspace(tokens));
    KdaLayerIo kda_io = layers_.kda_io();
    kda_io.record = records_.kda(0);
    kda_io.record_x = records_.kda_x(0);
    LINESTATE_RETURN_IF_ERROR(
        kda().forward(0, layers_.kda_weights(), metadata_, pool_, kda_io, context_));
    LightningLayerIo lightning_io = layers_.lightning_io();
    lightning_io.record = records_.lightning(1);
    return lightning().forward(1, layers_.lightning_weights(), metadata_, pool_, lightning_io,
                               context_);
  }

  /// Commits the verify rows of the last run.
  Status commit(const std::vector<int32_t>& accepted) {
    const HostTensor nodes = i32_tensor(accepted);
    LINESTATE_RETURN_IF_ERROR(
        kda().commit(0, metadata_, pool_, {records_.kda(0), records_.kda_x(0), nodes}, context_));
    return lightning().commit(1, layers_.lightning_weights(), metadata_, pool_,
                              {records_.lightning(1), nodes}, context_);
  }

  /// Outputs of tokens [begin, end) of the last run, both layers.
  std::vector<HostTensor> outputs(int64_t begin, int64_t end) const {
    std::vector<HostTensor> out;
    out.push_back(copy_of(layers_.kda_out().view().slice(0, begin, end)));
    out.push_back(copy_of(layers_.lightning_out().view().slice(0, begin, end)));
    return out;
  }
  /// State and window of layer 0, state of layer 1.
  std::vector<HostTensor> slot(int64_t s) const {
    std::vector<HostTensor> out;
    for (const TensorView& plane : pool_.planes()) {
      out.push_back(copy_of(plane.slice(0, s, s + 1)));
    }
    return out;
  }

 private:
  KdaBackend kda() const { return *KdaBackend::create(layers_.model(), names()); }
  LightningBackend lightning() const { return *LightningBackend::create(layers_.model(), names()); }
  KernelOptions names() const {
    KernelOptions names;
    names.base = options_.kernel;
    return names;
  }
  Status make_workspace(int64_t tokens) {
    const Result<int64_t> first = kda().workspace_bytes(tokens, pool_, context_);
    if (!first.ok()) return first.status();
    const Result<int64_t> second = lightning().workspace_bytes(tokens, pool_, context_);
    if (!second.ok()) return second.status();
    const int64_t bytes = std::max(*first, *second);
    workspace_ = HostTensor(DType::kU8, {bytes});
    context_.workspace = {workspace_.data(), bytes};
    return {};
  }

  TwoLayers layers_;
  EngineOptions options_;
  StatePool pool_;
  ForwardMetadata metadata_;
  VerifyRecords records_;
  ExecContext context_;
  HostTensor workspace_;
};

inline void expect_same(const std::vector<HostTensor>& a, const std::vector<HostTensor>& b,
                        const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(bit_difference(a[i], b[i]), "") << what << ", tensor " << i;
  }
}

}  // namespace linestate::testing
