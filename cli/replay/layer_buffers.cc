#include "cli/replay/layer_buffers.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace linestate::cli {
namespace {

using testing::HostTensor;

// Elements per token of the four inputs, in the order of LayerActivations.
std::array<int64_t, 4> input_channels(const LayerSpec& layer) {
  const HeadShape& heads = layer.heads;
  if (layer.kind == LayerKind::kKda) {
    return {layer.conv_channels(), heads.num_value_heads * heads.k_dim, heads.num_value_heads,
            layer.out_channels()};
  }
  const int64_t channels = layer.out_channels();
  return {channels, channels, channels, channels};
}

struct Widest {
  std::array<int64_t, 4> inputs{};
  int64_t out = 0;
};

Widest widest(const ModelConfig& model) {
  Widest most;
  for (const LayerSpec& layer : model.linear_layers) {
    const std::array<int64_t, 4> channels = input_channels(layer);
    for (size_t i = 0; i < channels.size(); ++i) {
      most.inputs[i] = std::max(most.inputs[i], channels[i]);
    }
    most.out = std::max(most.out, layer.out_channels());
  }
  return most;
}

// All bits set is a NaN in f32, bf16 and f16.
void fill_nan_bytes(const TensorView& view, int64_t begin, int64_t end) {
  const int64_t row_bytes = view.stride[0] * dtype_bytes(view.dtype);
  std::memset(static_cast<char*>(view.data) + begin * row_bytes, 0xff,
              static_cast<size_t>((end - begin) * row_bytes));
}

}  // namespace

LayerBuffers::LayerBuffers(const ModelConfig& model, int64_t max_tokens, DType io_dtype,
                           DType out_dtype) {
  const Widest most = widest(model);
  for (size_t i = 0; i < most.inputs.size(); ++i) {
    inputs_[i] = HostTensor(io_dtype, {max_tokens * most.inputs[i]});
  }
  out_ = HostTensor(out_dtype, {max_tokens * most.out});
}

int64_t LayerBuffers::bytes(const ModelConfig& model, int64_t max_tokens, DType io_dtype,
                            DType out_dtype) {
  const Widest most = widest(model);
  int64_t total = max_tokens * most.out * dtype_bytes(out_dtype);
  for (const int64_t channels : most.inputs) {
    total += max_tokens * channels * dtype_bytes(io_dtype);
  }
  return total;
}

Status LayerBuffers::use_device(Device device) {
  device_ = device;
  if (device.type == DeviceType::kCpu) return {};
  for (int i = 0; i <= kInputs; ++i) {
    testing::HostTensor& host = i < kInputs ? inputs_[i] : out_;
    Result<PinnedMemory> pinned = PinnedMemory::allocate(device, host.bytes());
    if (!pinned.ok()) return pinned.status();
    Result<DeviceMemory> memory = DeviceMemory::allocate(device, host.bytes());
    if (!memory.ok()) return memory.status();
    staging_[i] = std::move(pinned).value();
    memory_[i] = std::move(memory).value();
  }
  return {};
}

Status LayerBuffers::upload(void* stream) {
  if (device_.type == DeviceType::kCpu) return {};
  for (int i = 0; i <= kInputs; ++i) {
    const TensorView& view = i < kInputs ? views_[i] : out_view_;
    LINESTATE_RETURN_IF_ERROR(copy_bytes_async({memory_[i].data(), device_}, {view.data, {}},
                                               view.num_elements() * dtype_bytes(view.dtype),
                                               stream));
  }
  return {};
}

Status LayerBuffers::download(void* stream) {
  if (device_.type == DeviceType::kCpu) return {};
  return copy_bytes({out_view_.data, {}}, {memory_[kInputs].data(), device_},
                    out_view_.num_elements() * dtype_bytes(out_view_.dtype), stream);
}

TensorView LayerBuffers::placed(const TensorView& view, int i) const {
  if (device_.type == DeviceType::kCpu) return view;
  TensorView moved = view;
  moved.data = memory_[i].data();
  moved.device = device_;
  return moved;
}

void LayerBuffers::shape_for(const LayerSpec& layer, int64_t tokens) {
  const HeadShape& heads = layer.heads;
  const int64_t hv = heads.num_value_heads;
  auto input = [&](int i, std::initializer_list<int64_t> shape) {
    void* data = device_.type == DeviceType::kCpu ? inputs_[i].data() : staging_[i].data();
    views_[i] = TensorView(data, inputs_[i].dtype(), shape);
  };
  if (layer.kind == LayerKind::kKda) {
    input(0, {tokens, layer.conv_channels()});
    input(1, {tokens, hv, heads.k_dim});
    input(2, {tokens, hv});
    input(3, {tokens, hv, heads.v_dim});
  } else {
    for (int i = 0; i < kInputs; ++i) input(i, {tokens, hv, heads.v_dim});
  }
  void* data = device_.type == DeviceType::kCpu ? out_.data() : staging_[kInputs].data();
  out_view_ = TensorView(data, out_.dtype(), {tokens, hv, heads.v_dim});
}

void LayerBuffers::fill(const LayerActivations& activations, int64_t first,
                        std::span<const TokenAt> ids, int threads) {
  const auto count = static_cast<int64_t>(ids.size());
  for (size_t i = 0; i < activations.tensors.size(); ++i) {
    fill_tokens(activations.tensors[i], ids, views_[i].slice(0, first, first + count), threads);
  }
}

void LayerBuffers::poison_inputs(int64_t begin, int64_t end) {
  for (const TensorView& view : views_) fill_nan_bytes(view, begin, end);
}

void LayerBuffers::poison_output() { fill_nan_bytes(out_view_, 0, out_view_.shape[0]); }

KdaLayerIo LayerBuffers::kda_io(bool with_norm) const {
  KdaLayerIo io;
  io.qkv = placed(views_[0], 0);
  io.gate = placed(views_[1], 1);
  io.beta = placed(views_[2], 2);
  if (with_norm) io.z = placed(views_[3], 3);
  io.out = placed(out_view_, kInputs);
  return io;
}

LightningLayerIo LayerBuffers::lightning_io(bool with_norm) const {
  LightningLayerIo io;
  io.q = placed(views_[0], 0);
  io.k = placed(views_[1], 1);
  io.v = placed(views_[2], 2);
  if (with_norm) io.gate = placed(views_[3], 3);
  io.out = placed(out_view_, kInputs);
  return io;
}

}  // namespace linestate::cli
