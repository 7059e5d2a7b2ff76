#include "linestate/verify_records.h"

#include <vector>

#include "base/message.h"
#include "cpu/scratch.h"
#include "linestate/device_memory.h"

namespace linestate {
namespace {

struct LayerRecords {
  KdaRecord kda;
  TensorView kda_x;
  LightningRecord lightning;
};

LayerRecords take_layer(Scratch& scratch, const LayerSpec& layer, DType io, int64_t tokens,
                        Device device) {
  const auto take = [device](Scratch& from, DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view(nullptr, dtype, shape, device);
    view.data = from.take<char>(view.num_elements() * dtype_bytes(dtype));
    return view;
  };
  const HeadShape& heads = layer.heads;
  LayerRecords records;
  if (layer.kind == LayerKind::kLightning) {
    records.lightning.k = take(scratch, io, {tokens, heads.num_heads, heads.k_dim});
    records.lightning.v = take(scratch, io, {tokens, heads.num_heads, heads.v_dim});
    return records;
  }
  records.kda.u = take(scratch, DType::kF32, {tokens, heads.num_value_heads, heads.v_dim});
  records.kda.k = take(scratch, io, {tokens, heads.num_heads, heads.k_dim});
  records.kda.k_inverse_norm = take(scratch, DType::kF32, {tokens, heads.num_heads});
  records.kda.alpha = take(scratch, DType::kF32, {tokens, heads.num_value_heads, heads.k_dim});
  records.kda_x = take(scratch, io, {tokens, layer.conv_channels()});
  return records;
}

std::vector<LayerRecords> take_all(Scratch& scratch, const ModelConfig& model, DType io,
                                   int64_t tokens, Device device) {
  std::vector<LayerRecords> layers;
  for (const LayerSpec& layer : model.linear_layers) {
    layers.push_back(take_layer(scratch, layer, io, tokens, device));
  }
  return layers;
}

int64_t token_bytes(const LayerSpec& layer, DType io) {
  const HeadShape& heads = layer.heads;
  const int64_t io_bytes = dtype_bytes(io);
  if (layer.kind == LayerKind::kLightning) {
    return heads.num_heads * (heads.k_dim + heads.v_dim) * io_bytes;
  }
  return heads.num_value_heads * (heads.v_dim + heads.k_dim) * 4 + heads.num_heads * 4 +
         (heads.num_heads * heads.k_dim + layer.conv_channels()) * io_bytes;
}

}  // namespace

struct VerifyRecords::Impl {
  int64_t max_tokens = 0;
  DeviceMemory memory;
  std::vector<LayerRecords> layers;
};

VerifyRecords::VerifyRecords(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
VerifyRecords::VerifyRecords(VerifyRecords&&) noexcept = default;
VerifyRecords& VerifyRecords::operator=(VerifyRecords&&) noexcept = default;
VerifyRecords::~VerifyRecords() = default;

int64_t VerifyRecords::bytes_per_token(const ModelConfig& model, DType io_dtype) {
  int64_t bytes = 0;
  for (const LayerSpec& layer : model.linear_layers) bytes += token_bytes(layer, io_dtype);
  return bytes;
}

Result<VerifyRecords> VerifyRecords::create(const ModelConfig& model, DType io_dtype,
                                            int64_t max_tokens, Device device) try {
  LINESTATE_RETURN_IF_ERROR(validate(model));
  constexpr int64_t kMostTokens = int64_t{1} << 24;
  if (max_tokens < 1 || max_tokens > kMostTokens) {
    return invalid_argument("max_tokens: expected 1 to ", kMostTokens, ", got ", max_tokens);
  }
  if (!is_compute_dtype(io_dtype)) {
    return invalid_argument("io_dtype: expected f32, bf16 or f16, got ", dtype_name(io_dtype));
  }
  Scratch count;
  take_all(count, model, io_dtype, max_tokens, device);
  auto impl = std::make_unique<Impl>();
  impl->max_tokens = max_tokens;
  Result<DeviceMemory> memory = DeviceMemory::allocate(device, count.bytes());
  if (!memory.ok()) {
    if (memory.status().code() != StatusCode::kResourceExhausted) return memory.status();
    return Status(StatusCode::kResourceExhausted,
                  concat("verify records: cannot allocate ", count.bytes(), " bytes"));
  }
  impl->memory = std::move(memory).value();
  Scratch scratch(impl->memory.data());
  impl->layers = take_all(scratch, model, io_dtype, max_tokens, device);
  return VerifyRecords(std::move(impl));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

int64_t VerifyRecords::max_tokens() const { return impl_->max_tokens; }
KdaRecord VerifyRecords::kda(int64_t index) const {
  return impl_->layers[static_cast<size_t>(index)].kda;
}
TensorView VerifyRecords::kda_x(int64_t index) const {
  return impl_->layers[static_cast<size_t>(index)].kda_x;
}
LightningRecord VerifyRecords::lightning(int64_t index) const {
  return impl_->layers[static_cast<size_t>(index)].lightning;
}

}  // namespace linestate
