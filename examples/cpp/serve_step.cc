// A step of an engine in C++: one request decodes, another starts, through the first layer of a
// model. The lines that README.md shows are from here; a test compares them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "linestate/linestate.h"
using namespace linestate;

namespace {

constexpr int64_t kTokens = 513;

// Token tensors and weights of the layer; an engine has its own.
class Layer {
 public:
  explicit Layer(const LayerSpec& layer)
      : channels_(layer.conv_channels()), heads_(layer.heads), width_(layer.conv_width) {}

  KdaLayerWeights weights() {
    KdaLayerWeights made;
    made.conv_weight = floats({channels_, width_}, 0.3f);
    made.A_log = floats({heads_.num_value_heads}, 0.1f);
    made.dt_bias = floats({heads_.num_value_heads, heads_.k_dim}, 0.2f);
    return made;
  }
  KdaLayerIo io() {
    KdaLayerIo made;
    made.qkv = floats({kTokens, channels_}, 0.5f);
    made.gate = floats({kTokens, heads_.num_value_heads, heads_.k_dim}, 1.0f);
    made.beta = floats({kTokens, heads_.num_value_heads}, 1.0f);
    made.out = floats({kTokens, heads_.num_value_heads, heads_.v_dim}, 0.0f);
    return made;
  }

 private:
  TensorView floats(std::initializer_list<int64_t> shape, float scale) {
    TensorView view(nullptr, DType::kF32, shape);
    std::vector<float>& values = memory_.emplace_back(static_cast<size_t>(view.num_elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = scale * (static_cast<float>(i * 37 % 101) / 50.0f - 1.0f);
    }
    view.data = values.data();
    return view;
  }

  int64_t channels_;
  HeadShape heads_;
  int64_t width_;
  std::vector<std::vector<float>> memory_;
};

}  // namespace

int main() {
  const int32_t rank = 0, size = 8;  // one rank of eight: a layer of four heads
  const int64_t num_slots = 8, max_rows = 4, layer = 0;

  ModelConfig model = *shard_model(*model_preset("kimi-linear"), TpShard{rank, size});
  StatePool pool = *StatePool::create(make_pool_spec(model, DType::kF32, DType::kF32), num_slots);
  KdaBackend kda = *KdaBackend::create(model);
  ForwardMetadata metadata = *ForwardMetadata::create(max_rows);

  Layer tensors(model.linear_layers[0]);
  const KdaLayerWeights weights = tensors.weights();
  const KdaLayerIo io = tensors.io();
  ExecContext context;
  const int64_t scratch = *kda.workspace_bytes(kTokens, pool, context);
  void* memory = std::aligned_alloc(64, static_cast<size_t>((scratch + 63) / 64 * 64));
  context.workspace = {memory, scratch};
  // The decode row's state: what its prompt would have left.
  for (const TensorView& plane : pool.planes()) {
    const TensorView slot = plane.slice(0, 3, 4);
    if (plane.rank == 4) std::fill_n(static_cast<float*>(slot.data), slot.num_elements(), 0.01f);
  }
  const TensorView window = pool.conv_window(0).slice(0, 3, 4);
  std::fill_n(static_cast<float*>(window.data), window.num_elements(), 0.0f);

  Row rows[] = {{.slot = 3, .kind = RowKind::kDecode, .start = 811, .tokens = 1},
                {.slot = 7, .kind = RowKind::kExtend, .start = 0, .tokens = 512}};
  ForwardBatch batch;
  batch.rows = rows;
  Status status = metadata.prepare(batch, pool, context);                              // a step
  if (status.ok()) status = kda.forward(layer, weights, metadata, pool, io, context);  // a layer

  std::free(memory);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  }
  std::printf("first output of the decoded token: %f\n",
              static_cast<double>(static_cast<const float*>(io.out.data)[0]));
  return 0;
}
