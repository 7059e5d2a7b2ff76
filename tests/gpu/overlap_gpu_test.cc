// Kernels that overlap the ones before them on the stream (ExecContext::overlap): layer after layer
// from a graph, every bit as when each waits for the one before.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "linestate/ops/kda_decode_step.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"
#include "testing/kda_problem.h"
#include "tests/gpu/mirrored_rows_fixture.h"

namespace linestate::testing {
namespace {

constexpr int kLayers = 6;

/// Layers whose calls follow each other on one stream, in one mirror.
template <typename Params>
class Layers {
 public:
  using Call = std::function<Status(const Params&, const ExecContext&)>;
  Layers(std::vector<Params> layers, Call call)
      : call_(std::move(call)), mirror_(kGpu, test_stream()) {
    for (const Params& layer : layers) {
      owned_.emplace_back(layer);
      for_each_view(owned_.back(), [&](auto& view) { mirror_.add(view, writable(view)); });
    }
  }

  /// Empty when a graph of overlapping calls gives the bits of calls one by one.
  std::string compare() {
    std::string error = text(mirror_.upload());
    for (auto& layer : owned_) {
      for_each_view(layer, [&](auto& view) { view = mirror_.map(view); });
    }
    if (error.empty()) error = text(enqueue(false));
    if (!error.empty()) return error;
    const Result<std::vector<char>> expected = mirror_.download();
    if (!expected.ok()) return expected.status().to_string();
    if (error = text(enqueue_restored(true)); !error.empty()) return error;
    const Result<std::vector<char>> eager = mirror_.download();
    if (!eager.ok() || *eager != *expected) return "eager calls that overlap gave other bits";
    return replay(*expected);
  }

 private:
  static bool writable(const TensorView&) { return true; }
  static bool writable(const ConstTensorView&) { return false; }
  static std::string text(const Status& status) { return status.ok() ? "" : status.to_string(); }

  Status enqueue(bool overlap) {
    ExecContext context;
    context.device = kGpu;
    context.stream = test_stream();
    context.overlap = overlap;
    for (auto& layer : owned_) LINESTATE_RETURN_IF_ERROR(call_(layer.value, context));
    return {};
  }
  Status enqueue_restored(bool overlap) {
    LINESTATE_RETURN_IF_ERROR(mirror_.restore());
    return enqueue(overlap);
  }

  std::string replay(const std::vector<char>& expected) {
    auto* stream = static_cast<cudaStream_t>(test_stream());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
      return "no capture";
    }
    const std::string error = text(enqueue(true));
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess) return "capture: " + error;
    if (cudaGraphInstantiate(&executable, graph, 0) != cudaSuccess) return "no graph";
    std::string result = error;
    for (int time = 0; time < 3 && result.empty(); ++time) {
      result = text(mirror_.restore());
      if (cudaGraphLaunch(executable, stream) != cudaSuccess) result = "no launch";
      const Result<std::vector<char>> bytes = mirror_.download();
      if (!bytes.ok() || *bytes != expected) result += "a graph that overlaps gave other bits";
    }
    static_cast<void>(cudaGraphExecDestroy(executable));
    static_cast<void>(cudaGraphDestroy(graph));
    return result;
  }

  Call call_;
  DeviceMirror mirror_;
  std::vector<OwnedParams<Params>> owned_;
};

KdaShape layer_shape(DType state) {
  KdaShape shape;
  shape.H = shape.HV = 4;
  shape.K = shape.V = 128;
  shape.io = shape.gate_dtype = shape.out = DType::kBF16;
  shape.state = state;
  shape.slots = 40;
  return shape;
}

std::vector<KdaProblem> kda_layers(DType state, int64_t rows) {
  std::vector<KdaProblem> problems;
  for (int layer = 0; layer < kLayers; ++layer) {
    problems.push_back(
        make_kda_problem(layer_shape(state), rows, 30 + static_cast<uint64_t>(layer)));
    std::vector<KdaRow> list;
    for (int64_t n = 0; n < rows; ++n) {
      list.push_back({static_cast<int32_t>(n % 7 == 3 ? -1 : n), n % 5, 1});
    }
    problems.back().set_rows(list);
  }
  return problems;
}

TEST(Overlap, KdaDecode) {
  for (const DType state : {DType::kF32, DType::kBF16}) {
    for (const int64_t rows : {1, 33}) {
      std::vector<KdaProblem> problems = kda_layers(state, rows);
      std::vector<KdaParams> params;
      for (KdaProblem& problem : problems) params.push_back(problem.params());
      // The output of a layer is what the next one reads, as in a model.
      for (size_t i = 1; i < params.size(); ++i) params[i].v = params[i - 1].out;
      Layers<KdaParams> layers(params, [](const KdaParams& p, const ExecContext& context) {
        return kda_decode(p, context);
      });
      EXPECT_EQ(layers.compare(), "") << rows;
    }
  }
}

TEST(Overlap, KdaDecodeStep) {
  for (const int64_t rows : {1, 33}) {
    std::vector<KdaProblem> problems = kda_layers(DType::kF32, rows);
    const int64_t channels = 3 * 4 * 128;
    std::vector<HostTensor> kept;
    std::vector<KdaDecodeStepParams> params;
    const auto make = [&](std::vector<int64_t> shape, uint64_t seed) {
      kept.emplace_back(DType::kBF16, std::move(shape));
      fill_normal(kept.back(), seed, 0.5);
      return kept.back().view();
    };
    for (KdaProblem& problem : problems) {
      const KdaParams base = problem.params();
      const uint64_t seed = 50 + 8 * params.size();
      KdaDecodeStepParams p;
      p.rows = base.rows;
      p.x = make({rows, channels}, seed);
      p.conv_weight = make({channels, 4}, seed + 1);
      p.window = make({40, channels, 3}, seed + 2);
      p.gate = base.gate;
      p.beta = base.beta;
      p.A_log = base.A_log;
      p.dt_bias = base.dt_bias;
      p.state = base.state;
      p.norm_weight = make({128}, seed + 3);
      p.z = make({rows, 4, 128}, seed + 4);
      p.out = base.out;
      params.push_back(p);
    }
    for (size_t i = 1; i < params.size(); ++i) params[i].z = params[i - 1].out;
    Layers<KdaDecodeStepParams> layers(
        params, [](const KdaDecodeStepParams& p, const ExecContext& context) {
          return kda_decode_step(p, context);
        });
    EXPECT_EQ(layers.compare(), "") << rows;
  }
}

TEST(Overlap, LightningDecode) {
  for (const int64_t rows : {1, 33}) {
    const std::vector<int64_t> token_shape = {rows, 4, 128};
    std::vector<HostTensor> kept;
    std::vector<LightningParams> params;
    const auto make = [&](DType dtype, std::vector<int64_t> shape, uint64_t seed) {
      kept.emplace_back(dtype, std::move(shape));
      fill_uniform(kept.back(), seed, 0.0, 1.0);
      return kept.back().view();
    };
    std::vector<int32_t> slots;
    for (int64_t n = 0; n < rows; ++n) slots.push_back(static_cast<int32_t>(39 - n));
    const HostTensor slot = i32_tensor(slots);
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      LightningParams p;
      p.rows.slot = slot;
      p.q = make(DType::kBF16, token_shape, 5 * layer);
      p.k = make(DType::kBF16, token_shape, 5 * layer + 1);
      p.v = make(DType::kBF16, token_shape, 5 * layer + 2);
      p.slopes = make(DType::kF32, {4}, 5 * layer + 3);
      p.state = make(DType::kF32, {40, 4, 128, 128}, 5 * layer + 4);
      p.out = make(DType::kBF16, token_shape, 5 * layer + 5);
      p.scale = 0.1f;
      if (layer > 0) p.v = params.back().out;
      params.push_back(p);
    }
    Layers<LightningParams> layers(params,
                                   [](const LightningParams& p, const ExecContext& context) {
                                     return lightning_decode(p, context);
                                   });
    EXPECT_EQ(layers.compare(), "") << rows;
  }
}

}  // namespace
}  // namespace linestate::testing
