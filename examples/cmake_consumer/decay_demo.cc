// One Lightning head fed with k = v = 1: its state is the geometric series of the decay.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "linestate/linestate.h"

using namespace linestate;

namespace {

constexpr int64_t kTokens = 100;
constexpr int64_t kDim = 16;

Status run(float slope, std::vector<float>& out) {
  std::vector<float> ones(kTokens * kDim, 1.0f);
  std::vector<float> state(kDim * kDim);
  const int32_t slot = 0;
  const int64_t offsets[] = {0, kTokens};
  const int64_t start = 0;

  LightningParams params;
  params.rows.slot = {&slot, DType::kI32, {1}};
  params.rows.query_start_loc = {offsets, DType::kI64, {2}};
  params.rows.start = {&start, DType::kI64, {1}};
  params.q = params.k = params.v = {ones.data(), DType::kF32, {kTokens, 1, kDim}};
  params.slopes = {&slope, DType::kF32, {1}};
  params.state = {state.data(), DType::kF32, {1, 1, kDim, kDim}};
  params.out = {out.data(), DType::kF32, {kTokens, 1, kDim}};

  ExecContext context;
  const Result<int64_t> bytes = lightning_prefill_workspace_bytes(params, context);
  if (!bytes.ok()) return bytes.status();
  struct alignas(64) Line {
    char bytes[64];
  };
  std::vector<Line> scratch(static_cast<size_t>(*bytes) / sizeof(Line) + 1);
  context.workspace = {scratch.data(), *bytes};
  return lightning_prefill(params, context);
}

}  // namespace

int main() {
  const float slope = 0.25f;
  std::vector<float> out(kTokens * kDim);
  const Status status = run(slope, out);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  }
  const double decay = std::exp(-static_cast<double>(slope));
  const double expected = kDim * (1 - std::pow(decay, kTokens)) / (1 - decay);
  const double got = out.back();
  std::printf("linestate %s: the last output is %.5f, the series is %.5f\n", version_string(), got,
              expected);
  return std::abs(got - expected) < 1e-5 * expected ? 0 : 1;
}
