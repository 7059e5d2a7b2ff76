// Tensor parallel ranks on a GPU: each rank runs its heads, and together they give what one rank
// gives with all heads. And strict contexts, which take no second-best kernel.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "linestate/backend.h"
#include "linestate/kernel_registry.h"
#include "linestate/tp_shard.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "tests/gpu/device_engine_fixture.h"

namespace linestate {
namespace {

using testing::DeviceEngine;
using testing::DeviceTensor;
using testing::HostTensor;

constexpr int64_t kTokens = 130;  // two rows, across chunks
constexpr int32_t kRanks = 2;
constexpr double kLimit = 1e-6;  // f32 in and out

LayerSpec kda_layer() {
  LayerSpec layer;
  layer.heads = {4, 8, 64, 64};
  layer.gate_form = KdaGate::kBounded;
  layer.lower_bound = -5.0f;
  return layer;
}

LayerSpec lightning_layer() {
  LayerSpec layer;
  layer.kind = LayerKind::kLightning;
  layer.heads = {8, 8, 64, 64};
  layer.norm_groups = 2;
  return layer;
}

HostTensor filled(std::vector<int64_t> shape, uint64_t seed, double scale = 1.0) {
  HostTensor tensor(DType::kF32, std::move(shape));
  testing::fill_normal(tensor, seed, scale);
  return tensor;
}

// Columns [begin, end) of dimension `dim`, for the rank's heads of `width` channels each.
HostTensor cut(const HostTensor& all, int dim, HeadRange heads, int64_t width, int64_t base = 0) {
  return testing::copy_of(
      all.view().slice(dim, base + heads.begin * width, base + heads.end * width));
}

HostTensor join_columns(const std::vector<HostTensor>& parts) {
  int64_t columns = 0;
  for (const HostTensor& part : parts) columns += part.shape()[1];
  HostTensor all(parts[0].dtype(), {parts[0].shape()[0], columns});
  int64_t at = 0;
  for (const HostTensor& part : parts) {
    const int64_t width = part.shape()[1];
    for (int64_t i = 0; i < part.num_elements(); ++i) {
      all.set(i / width * columns + at + i % width, part.at(i));
    }
    at += width;
  }
  return all;
}

// One layer on the device, its pool and its batch.
class OneLayer {
 public:
  explicit OneLayer(const LayerSpec& layer)
      : stream_(*DeviceStream::create(DeviceEngine::device())) {
    model_.num_layers = 1;
    model_.linear_layers = {layer};
    context_.device = DeviceEngine::device();
    context_.stream = stream_.handle();
    pool_.emplace(
        *StatePool::create(make_pool_spec(model_, DType::kF32, DType::kF32), 2, context_.device));
    metadata_.emplace(*ForwardMetadata::create(2, context_.device));
    std::vector<Row> rows(2);
    for (int32_t n = 0; n < 2; ++n) rows[static_cast<size_t>(n)].slot = n;
    rows[0].kind = rows[1].kind = RowKind::kExtend;
    rows[0].tokens = 70;
    rows[1].tokens = static_cast<int32_t>(kTokens) - 70;
    ForwardBatch batch;
    batch.rows = rows;
    EXPECT_TRUE(metadata_->prepare(batch, *pool_, context_).ok());
  }

  ConstTensorView put(const HostTensor& host) {
    tensors_.emplace_back();
    return tensors_.back().put(host, stream_.handle());
  }
  TensorView put_out(int64_t heads, int64_t dim) {
    HostTensor out(DType::kF32, {kTokens, heads, dim});
    testing::fill_nan(out);
    tensors_.emplace_back();
    return tensors_.back().put(out, stream_.handle());
  }
  void give_workspace(const Result<int64_t>& bytes) {
    workspace_ = *DeviceMemory::allocate(context_.device, *bytes);
    context_.workspace = {workspace_.data(), *bytes};
  }
  HostTensor state() const { return testing::download(pool_->recurrent(0), stream_.handle()); }
  HostTensor read(const TensorView& view) const {
    return testing::download(view, stream_.handle());
  }

  ModelConfig model_;
  ExecContext context_;
  std::optional<StatePool> pool_;
  std::optional<ForwardMetadata> metadata_;

 private:
  DeviceStream stream_;
  std::vector<DeviceTensor> tensors_;
  DeviceMemory workspace_;
};

struct Results {
  HostTensor out;
  HostTensor state;
};

// KDA with the heads of a rank.
Results run_kda(const TpShard& shard) {
  const LayerSpec whole = kda_layer();
  const HeadShape& all = whole.heads;
  const HeadRange keys = *shard.heads(all.num_heads);
  const HeadRange values = *shard.heads(all.num_value_heads);
  const int64_t key_channels = all.num_heads * all.k_dim;
  const auto qkv_of = [&](const HostTensor& tensor) {
    std::vector<HostTensor> parts;
    parts.push_back(cut(tensor, 1, keys, all.k_dim));
    parts.push_back(cut(tensor, 1, keys, all.k_dim, key_channels));
    parts.push_back(cut(tensor, 1, values, all.v_dim, 2 * key_channels));
    return join_columns(parts);
  };
  OneLayer layer(*shard_layer(whole, shard));
  const KdaBackend backend = *KdaBackend::create(layer.model_);
  layer.give_workspace(backend.workspace_bytes(kTokens, *layer.pool_, layer.context_));
  // Weights are [channels, W]: cut through their transpose.
  const HostTensor taps = filled({whole.conv_width, whole.conv_channels()}, 1, 0.5);
  const HostTensor own_taps = qkv_of(taps);
  HostTensor weight(DType::kF32, {own_taps.shape()[1], whole.conv_width});
  for (int64_t i = 0; i < weight.num_elements(); ++i) {
    weight.set(i, own_taps.at(i % whole.conv_width * own_taps.shape()[1] + i / whole.conv_width));
  }
  KdaLayerWeights weights;
  weights.conv_weight = layer.put(weight);
  weights.A_log = layer.put(cut(filled({all.num_value_heads}, 2, 0.3), 0, values, 1));
  weights.dt_bias = layer.put(cut(filled({all.num_value_heads, all.k_dim}, 3), 0, values, 1));
  weights.norm_weight = layer.put(filled({all.v_dim}, 4));
  KdaLayerIo io;
  io.qkv = layer.put(qkv_of(filled({kTokens, whole.conv_channels()}, 5)));
  io.gate = layer.put(cut(filled({kTokens, all.num_value_heads, all.k_dim}, 6), 1, values, 1));
  io.beta = layer.put(cut(filled({kTokens, all.num_value_heads}, 7), 1, values, 1));
  io.z = layer.put(cut(filled({kTokens, all.num_value_heads, all.v_dim}, 8), 1, values, 1));
  io.out = layer.put_out(values.size(), all.v_dim);
  const Status status =
      backend.forward(0, weights, *layer.metadata_, *layer.pool_, io, layer.context_);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return {layer.read(io.out), layer.state()};
}

Results run_lightning(const TpShard& shard) {
  const LayerSpec whole = lightning_layer();
  const HeadShape& all = whole.heads;
  const HeadRange heads = *shard.heads(all.num_heads);
  OneLayer layer(*shard_layer(whole, shard));
  const LightningBackend backend = *LightningBackend::create(layer.model_);
  layer.give_workspace(backend.workspace_bytes(kTokens, *layer.pool_, layer.context_));
  const auto tokens = [&](uint64_t seed) {
    return layer.put(cut(filled({kTokens, all.num_heads, all.k_dim}, seed), 1, heads, 1));
  };
  LightningLayerWeights weights;
  weights.slopes = layer.put(testing::f32_tensor(*lightning_slopes(all.num_heads, 3, 8, shard)));
  weights.norm_weight = layer.put(cut(filled({whole.out_channels()}, 4), 0, heads, all.v_dim));
  LightningLayerIo io;
  io.q = tokens(5);
  io.k = tokens(6);
  io.v = tokens(7);
  io.gate = tokens(8);
  io.out = layer.put_out(heads.size(), all.v_dim);
  const Status status =
      backend.forward(0, weights, *layer.metadata_, *layer.pool_, io, layer.context_);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return {layer.read(io.out), layer.state()};
}

template <typename Run>
void expect_ranks_make_the_whole(const Run& run, int64_t heads) {
  const Results whole = run(TpShard{});
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    const Results part = run(TpShard{rank, kRanks});
    const HeadRange own = *TpShard{rank, kRanks}.heads(heads);
    const testing::Difference out =
        testing::compare(part.out, whole.out.view().slice(1, own.begin, own.end));
    EXPECT_LE(out.rel, kLimit) << "rank " << rank << ": " << out.text();
    const testing::Difference state =
        testing::compare(part.state, whole.state.view().slice(1, own.begin, own.end));
    EXPECT_LE(state.rel, kLimit) << "rank " << rank << ": " << state.text();
  }
}

TEST(ShardGpu, KdaRanksMakeTheWhole) { expect_ranks_make_the_whole(run_kda, 8); }
TEST(ShardGpu, LightningRanksMakeTheWhole) { expect_ranks_make_the_whole(run_lightning, 8); }

// A row behind a better one that refuses: counted and run, or in a strict context refused.
TEST(StrictGpu, AFallbackIsAnErrorWithItsReasons) {
  ExternalKernel<KdaParams> better;
  better.name = "better";
  better.device = DeviceType::kCuda;
  better.summary = "refuses everything";
  better.refuse = [](const KdaParams&, const ExecContext&, void*) {
    return std::string("not today");
  };
  better.run = [](const KdaParams&, const ExecContext&, void*) { return Status(); };
  ASSERT_TRUE(register_kernel("kda_decode", better).ok());
  OneLayer layer(kda_layer());
  const HeadShape& heads = layer.model_.linear_layers[0].heads;
  const int64_t HV = heads.num_value_heads;
  KdaParams params;
  params.rows.slot = layer.put(testing::i32_tensor({0}));
  params.q = layer.put(filled({1, heads.num_heads, heads.k_dim}, 1));
  params.k = layer.put(filled({1, heads.num_heads, heads.k_dim}, 2));
  params.v = layer.put(filled({1, HV, heads.v_dim}, 3));
  params.gate = layer.put(filled({1, HV, heads.k_dim}, 4));
  params.beta = layer.put(filled({1, HV}, 5));
  params.A_log = layer.put(filled({HV}, 6));
  params.dt_bias = layer.put(filled({HV, heads.k_dim}, 7));
  params.state = layer.pool_->recurrent(0);
  params.out = layer.put_out(HV, heads.v_dim).slice(0, 0, 1);
  ExecContext context = layer.context_;
  EXPECT_TRUE(kda_decode_workspace_bytes(params, context).ok());
  context.strict = true;
  for (const Status& status :
       {kda_decode_workspace_bytes(params, context).status(), kda_decode(params, context)}) {
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("not today"), std::string::npos) << status.message();
  }
  EXPECT_TRUE(kda_decode_workspace_bytes(params, context, "cuda").ok());  // asked for by name
  ASSERT_TRUE(unregister_kernel("kda_decode", "better").ok());
}

}  // namespace
}  // namespace linestate
