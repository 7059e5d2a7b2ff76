// The linear layers of a model with their weights, activations and backends: what a run, its
// verification and `linestate explain` have in common.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/replay/device_copies.h"
#include "cli/replay/layer_buffers.h"
#include "cli/replay/profile.h"
#include "linestate/backend.h"
#include "linestate/model_config.h"
#include "linestate/verify_records.h"

namespace linestate::cli {

struct StackOptions {
  TpShard shard;
  Profile profile = Profile::kMixed;
  uint64_t seed = 0;
};

/// Weights and activation plans, shared by every LayerRunner over them.
struct LayerStack {
  ModelConfig model;  // this rank's part
  std::vector<LayerActivations> activations;
  std::vector<LayerWeightTensors> weights;

  int64_t num_layers() const { return static_cast<int64_t>(model.linear_layers.size()); }
  const LayerSpec& layer(int64_t index) const {
    return model.linear_layers[static_cast<size_t>(index)];
  }
  /// Of every layer, as ReplaySpec wants them.
  std::vector<std::vector<float>> slopes() const;
  /// False where the norm spans ranks: a single rank cannot apply it, so the layer ends before it.
  bool with_norm(int64_t index) const { return !layer(index).norm_spans_ranks(); }
};

/// `model` is the whole model. Errors: kInvalidArgument when the shard does not divide it.
Result<LayerStack> make_layer_stack(const ModelConfig& model, const StackOptions& options);

/// Runs layers with one set of kernels and one workspace.
class LayerRunner {
 public:
  /// `stack` must outlive the runner. `kernel` names the row of every operator ("auto", "ref").
  /// Weights, records and workspace lie on the context's device, as `pool` must.
  /// `max_verify_tokens` is room for the tokens of a batch's verify rows, with tensors in io_dtype.
  /// Errors: as the backends' create and workspace_bytes, and VerifyRecords::create.
  static Result<LayerRunner> create(const LayerStack& stack, const std::string& kernel,
                                    int64_t max_tokens, const StatePool& pool,
                                    const ExecContext& context, int64_t max_verify_tokens = 0,
                                    DType io_dtype = DType::kBF16);

  /// Layer `index` over a prepared batch; `buffers` hold its inputs.
  Status forward(int64_t index, const ForwardMetadata& metadata, const StatePool& pool,
                 const LayerBuffers& buffers);
  /// Puts the accepted nodes of the batch that forward() ran, by verify row, where every commit()
  /// reads them; rows beyond them get -1. REQUIRES: the metadata still holds that batch.
  Status accept(const ForwardMetadata& metadata, std::span<const int32_t> accepted);
  /// Commits layer `index` of that batch.
  Status commit(int64_t index, const ForwardMetadata& metadata, const StatePool& pool);
  std::vector<KernelChoice> explain(int64_t index, const ForwardMetadata& metadata,
                                    const StatePool& pool, const LayerBuffers& buffers);
  const ExecContext& context() const { return context_; }
  /// At most the threads that create() was given; changes no bit.
  void use_threads(int32_t threads) { context_.num_threads = threads; }

 private:
  const LayerStack* stack_ = nullptr;
  std::optional<KdaBackend> kda_;
  std::optional<LightningBackend> lightning_;
  std::optional<VerifyRecords> records_;
  struct Weights {
    KdaLayerWeights kda;
    LightningLayerWeights lightning;
  };
  Status put_weights();

  DeviceCopies copies_;
  std::vector<Weights> weights_;  // by layer, on the context's device
  DeviceMemory workspace_;
  DeviceMemory accepted_;  // nodes of a batch, where commits read them
  ExecContext context_;
};

}  // namespace linestate::cli
