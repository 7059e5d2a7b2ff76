// Test harness for both backends: a model of two layers, repeatable weights and per-request token
// streams, so that a batch can be assembled from any pieces of any requests.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "linestate/backend.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate::testing {

inline ModelConfig two_layer_model() {
  ModelConfig model;
  model.name = "test";
  model.num_layers = 2;
  LayerSpec kda;
  kda.heads = {2, 4, 32, 48};
  kda.gate_form = KdaGate::kBounded;
  kda.lower_bound = -5.0f;
  LayerSpec lightning;
  lightning.kind = LayerKind::kLightning;
  lightning.layer_id = 1;
  lightning.heads = {4, 4, 32, 32};
  lightning.norm_groups = 2;
  model.linear_layers = {kda, lightning};
  return model;
}

/// One piece of one request: tokens [start, start + tokens) of its stream, or those named.
struct Piece {
  int request = 0;
  Row row;
  std::vector<int64_t> tokens;  // of the stream, one a token of the row; empty = from row.start on
};

/// Tensors of both layers over T tokens, gathered from the requests' streams.
class TwoLayers {
 public:
  explicit TwoLayers(DType io = DType::kBF16) : io_(io), model_(two_layer_model()) {
    const HeadShape& kda = model_.linear_layers[0].heads;
    const int64_t channels = model_.linear_layers[0].conv_channels();
    conv_weight_ = filled(DType::kF32, {channels, 4}, 1, 0.5);
    conv_bias_ = filled(DType::kF32, {channels}, 2, 0.1);
    A_log_ = filled(DType::kF32, {kda.num_value_heads}, 3, 0.3);
    dt_bias_ = filled(DType::kF32, {kda.num_value_heads, kda.k_dim}, 4, 1.0);
    norm_weight_ = filled(DType::kBF16, {kda.v_dim}, 5, 0.2);
    slopes_ = f32_tensor({0.5f, 0.25f, 0.125f, 0.0625f});
    group_weight_ = filled(DType::kF32, {model_.linear_layers[1].out_channels()}, 6, 0.3);
  }

  const ModelConfig& model() const { return model_; }
  DType io() const { return io_; }

  KdaLayerWeights kda_weights() const {
    return {conv_weight_, conv_bias_, A_log_, dt_bias_, norm_weight_};
  }
  LightningLayerWeights lightning_weights() const { return {slopes_, group_weight_}; }

  /// Gathers inputs for the pieces into tensors of `capacity` tokens; surplus tokens hold NaN.
  void gather(const std::vector<Piece>& pieces, int64_t capacity) {
    const HeadShape& kda = model_.linear_layers[0].heads;
    const HeadShape& lightning = model_.linear_layers[1].heads;
    const int64_t channels = model_.linear_layers[0].conv_channels();
    qkv_ = stream(pieces, capacity, {channels}, 10);
    gate_ = stream(pieces, capacity, {kda.num_value_heads, kda.k_dim}, 11);
    beta_ = stream(pieces, capacity, {kda.num_value_heads}, 12);
    z_ = stream(pieces, capacity, {kda.num_value_heads, kda.v_dim}, 13);
    q_ = stream(pieces, capacity, {lightning.num_heads, lightning.k_dim}, 14);
    k_ = stream(pieces, capacity, {lightning.num_heads, lightning.k_dim}, 15);
    v_ = stream(pieces, capacity, {lightning.num_heads, lightning.k_dim}, 16);
    group_gate_ = stream(pieces, capacity, {lightning.num_heads, lightning.k_dim}, 17);
    kda_out_ = HostTensor(io_, {capacity, kda.num_value_heads, kda.v_dim});
    lightning_out_ = HostTensor(io_, {capacity, lightning.num_heads, lightning.k_dim});
    fill_nan(kda_out_);
    fill_nan(lightning_out_);
  }

  KdaLayerIo kda_io() { return {qkv_, gate_, beta_, z_, kda_out_, {}, {}}; }
  LightningLayerIo lightning_io() { return {q_, k_, v_, group_gate_, lightning_out_, {}}; }
  const HostTensor& kda_out() const { return kda_out_; }
  const HostTensor& lightning_out() const { return lightning_out_; }

 private:
  static HostTensor filled(DType dtype, std::vector<int64_t> shape, uint64_t seed, double scale) {
    HostTensor tensor(dtype, std::move(shape));
    fill_normal(tensor, seed, scale);
    return tensor;
  }

  HostTensor stream(const std::vector<Piece>& pieces, int64_t capacity, std::vector<int64_t> inner,
                    uint64_t seed) const {
    std::vector<int64_t> shape = {capacity};
    shape.insert(shape.end(), inner.begin(), inner.end());
    HostTensor out(io_, shape);
    fill_nan(out);
    int64_t t = 0;
    for (const Piece& piece : pieces) {
      const int64_t valid = piece.row.num_valid < 0 ? piece.row.tokens : piece.row.num_valid;
      for (int64_t i = 0; i < piece.row.tokens; ++i, ++t) {
        const TensorView token = out.view().slice(0, t, t + 1);
        if (piece.row.kind == RowKind::kPad || i >= valid) continue;  // NaN: must not be read
        const int64_t at =
            piece.tokens.empty() ? piece.row.start + i : piece.tokens[static_cast<size_t>(i)];
        const auto position = static_cast<uint64_t>(at);
        const uint64_t key = seed * 1000003 + static_cast<uint64_t>(piece.request);
        fill_normal(token, hash64(key) ^ position);
      }
    }
    return out;
  }

  DType io_;
  ModelConfig model_;
  HostTensor conv_weight_, conv_bias_, A_log_, dt_bias_, norm_weight_, slopes_, group_weight_;
  HostTensor qkv_, gate_, beta_, z_, q_, k_, v_, group_gate_;
  HostTensor kda_out_, lightning_out_;
};

}  // namespace linestate::testing
