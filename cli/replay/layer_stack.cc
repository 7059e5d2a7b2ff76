#include "cli/replay/layer_stack.h"

#include <algorithm>
#include <utility>

namespace linestate::cli {
namespace {

ConstTensorView view_of(const testing::HostTensor& tensor) {
  return tensor.defined() ? tensor.view() : ConstTensorView();
}

KdaLayerWeights kda_weights(const LayerStack& stack, int64_t index) {
  const LayerWeightTensors& tensors = stack.weights[static_cast<size_t>(index)];
  KdaLayerWeights weights;
  weights.conv_weight = view_of(tensors.conv_weight);
  weights.A_log = view_of(tensors.A_log);
  weights.dt_bias = view_of(tensors.dt_bias);
  if (stack.with_norm(index)) weights.norm_weight = view_of(tensors.norm_weight);
  return weights;
}

LightningLayerWeights lightning_weights(const LayerStack& stack, int64_t index) {
  const LayerWeightTensors& tensors = stack.weights[static_cast<size_t>(index)];
  LightningLayerWeights weights;
  weights.slopes = view_of(tensors.slopes);
  if (stack.with_norm(index)) weights.norm_weight = view_of(tensors.norm_weight);
  return weights;
}

bool has_kind(const ModelConfig& model, LayerKind kind) {
  return std::any_of(model.linear_layers.begin(), model.linear_layers.end(),
                     [&](const LayerSpec& layer) { return layer.kind == kind; });
}

}  // namespace

std::vector<std::vector<float>> LayerStack::slopes() const {
  std::vector<std::vector<float>> all;
  for (const LayerWeightTensors& tensors : weights) {
    std::vector<float>& slopes = all.emplace_back();
    if (!tensors.slopes.defined()) continue;
    const auto* values = static_cast<const float*>(tensors.slopes.view().data);
    slopes.assign(values, values + tensors.slopes.num_elements());
  }
  return all;
}

Result<LayerStack> make_layer_stack(const ModelConfig& model, const StackOptions& options) {
  Result<ModelConfig> local = shard_model(model, options.shard);
  if (!local.ok()) return local.status();
  LayerStack stack;
  stack.model = std::move(local).value();
  for (const LayerSpec& layer : model.linear_layers) {
    Result<LayerActivations> activations =
        make_activations(layer, options.shard, options.profile, options.seed);
    if (!activations.ok()) return activations.status();
    stack.activations.push_back(std::move(activations).value());
    Result<LayerWeightTensors> weights =
        make_weights(layer, model.num_layers, options.shard, options.profile, options.seed);
    if (!weights.ok()) return weights.status();
    stack.weights.push_back(std::move(weights).value());
  }
  return stack;
}

Result<LayerRunner> LayerRunner::create(const LayerStack& stack, const std::string& kernel,
                                        int64_t max_tokens, const StatePool& pool,
                                        const ExecContext& context, int64_t max_verify_tokens,
                                        DType io_dtype) {
  LayerRunner runner;
  if (max_verify_tokens > 0) {
    Result<VerifyRecords> records =
        VerifyRecords::create(stack.model, io_dtype, max_verify_tokens, context.device);
    if (!records.ok()) return records.status();
    runner.records_ = std::move(records).value();
    Result<DeviceMemory> accepted = DeviceMemory::allocate(
        context.device, max_verify_tokens * static_cast<int64_t>(sizeof(int32_t)));
    if (!accepted.ok()) return accepted.status();
    runner.accepted_ = std::move(accepted).value();
  }
  runner.stack_ = &stack;
  runner.context_ = context;
  runner.copies_ = DeviceCopies(context.device);
  LINESTATE_RETURN_IF_ERROR(runner.put_weights());
  KernelOptions options;
  options.base = kernel;
  int64_t bytes = 0;
  if (has_kind(stack.model, LayerKind::kKda)) {
    Result<KdaBackend> backend = KdaBackend::create(stack.model, options);
    if (!backend.ok()) return backend.status();
    Result<int64_t> need = backend->workspace_bytes(max_tokens, pool, context);
    if (!need.ok()) return need.status();
    bytes = std::max(bytes, *need);
    runner.kda_ = std::move(backend).value();
  }
  if (has_kind(stack.model, LayerKind::kLightning)) {
    Result<LightningBackend> backend = LightningBackend::create(stack.model, options);
    if (!backend.ok()) return backend.status();
    Result<int64_t> need = backend->workspace_bytes(max_tokens, pool, context);
    if (!need.ok()) return need.status();
    bytes = std::max(bytes, *need);
    runner.lightning_ = std::move(backend).value();
  }
  Result<DeviceMemory> workspace = DeviceMemory::allocate(context.device, bytes);
  if (!workspace.ok()) return workspace.status();
  runner.workspace_ = std::move(workspace).value();
  runner.context_.workspace = {runner.workspace_.data(), bytes};
  return runner;
}

Status LayerRunner::put_weights() {
  const auto put = [this](ConstTensorView& view) -> Status {
    Result<ConstTensorView> made = copies_.put(view);
    if (!made.ok()) return made.status();
    view = *made;
    return {};
  };
  for (int64_t i = 0; i < stack_->num_layers(); ++i) {
    Weights weights{kda_weights(*stack_, i), lightning_weights(*stack_, i)};
    KdaLayerWeights& kda = weights.kda;
    LightningLayerWeights& lightning = weights.lightning;
    for (ConstTensorView* view : {&kda.conv_weight, &kda.A_log, &kda.dt_bias, &kda.norm_weight,
                                  &lightning.slopes, &lightning.norm_weight}) {
      LINESTATE_RETURN_IF_ERROR(put(*view));
    }
    weights_.push_back(weights);
  }
  return {};
}

Status LayerRunner::forward(int64_t index, const ForwardMetadata& metadata, const StatePool& pool,
                            const LayerBuffers& buffers) {
  const bool norm = stack_->with_norm(index);
  if (stack_->layer(index).kind == LayerKind::kKda) {
    KdaLayerIo io = buffers.kda_io(norm);
    if (records_) {
      io.record = records_->kda(index);
      io.record_x = records_->kda_x(index);
    }
    return kda_->forward(index, weights_[static_cast<size_t>(index)].kda, metadata, pool, io,
                         context_);
  }
  LightningLayerIo io = buffers.lightning_io(norm);
  if (records_) io.record = records_->lightning(index);
  return lightning_->forward(index, weights_[static_cast<size_t>(index)].lightning, metadata, pool,
                             io, context_);
}

Status LayerRunner::accept(const ForwardMetadata& metadata, std::span<const int32_t> accepted) {
  const Segment* segment = metadata.find_segment(RowKind::kVerify);
  std::vector<int32_t> nodes(accepted.begin(), accepted.end());
  nodes.resize(static_cast<size_t>(segment->row_end - segment->row_begin), -1);
  return copy_bytes({accepted_.data(), context_.device}, {nodes.data(), {}},
                    static_cast<int64_t>(nodes.size() * sizeof(int32_t)), context_.stream);
}

Status LayerRunner::commit(int64_t index, const ForwardMetadata& metadata, const StatePool& pool) {
  const Segment* segment = metadata.find_segment(RowKind::kVerify);
  if (segment == nullptr) {
    return Status(StatusCode::kFailedPrecondition, "commit: expected a batch with verify rows");
  }
  const ConstTensorView nodes(accepted_.data(), DType::kI32,
                              {segment->row_end - segment->row_begin}, context_.device);
  if (stack_->layer(index).kind == LayerKind::kKda) {
    return kda_->commit(index, metadata, pool,
                        {records_->kda(index), records_->kda_x(index), nodes}, context_);
  }
  return lightning_->commit(index, weights_[static_cast<size_t>(index)].lightning, metadata, pool,
                            {records_->lightning(index), nodes}, context_);
}

std::vector<KernelChoice> LayerRunner::explain(int64_t index, const ForwardMetadata& metadata,
                                               const StatePool& pool, const LayerBuffers& buffers) {
  const bool norm = stack_->with_norm(index);
  if (stack_->layer(index).kind == LayerKind::kKda) {
    return kda_->explain(index, weights_[static_cast<size_t>(index)].kda, metadata, pool,
                         buffers.kda_io(norm), context_);
  }
  return lightning_->explain(index, weights_[static_cast<size_t>(index)].lightning, metadata, pool,
                             buffers.lightning_io(norm), context_);
}

}  // namespace linestate::cli
