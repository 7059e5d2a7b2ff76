// Golden files of the short convolution. The files store windows as [slots, 3, dim]; the operator
// reads the transposed view of the same memory.
#include <array>
#include <utility>

#include "linestate/ops/causal_conv1d.h"
#include "testing/fill.h"
#include "testing/golden_case.h"

namespace linestate::testing {
namespace {

struct Variant {
  const char* name;
  Activation activation;
  bool bias;
};

constexpr std::array<Variant, 4> kVariants = {{{"out_none_nobias", Activation::kNone, false},
                                               {"out_none_bias", Activation::kNone, true},
                                               {"out_silu_nobias", Activation::kSilu, false},
                                               {"out_silu_bias", Activation::kSilu, true}}};

constexpr GoldenOp<CausalConv1dParams> kPrefill = {
    causal_conv1d_prefill, causal_conv1d_prefill_workspace_bytes, explain_causal_conv1d_prefill};
constexpr GoldenOp<CausalConv1dParams> kUpdate = {
    causal_conv1d_update, causal_conv1d_update_workspace_bytes, explain_causal_conv1d_update};

/// Every variant in the file: x [steps * tokens of one call, dim], calls one after another on the
/// same windows.
void run_variants(GoldenCase& golden, const GoldenOp<CausalConv1dParams>& op,
                  const GoldenRows& rows, const ConstTensorView& x, int64_t steps) {
  const int64_t dim = x.shape[1];
  const HostTensor& weight = golden.tensor("weight", {dim, kAnyGoldenSize});
  const HostTensor& bias = golden.tensor("bias", {dim});
  const int64_t tail = weight.shape()[1] - 1;
  const HostTensor before = golden.pool("conv_pool_before", {kAnyGoldenSize, tail, dim});
  const HostTensor& after = golden.tensor("conv_pool_after", {before.shape()[0], tail, dim});
  for (const Variant& variant : kVariants) {
    const std::string name = variant.name;
    if (!golden.has(name)) continue;
    HostTensor window = before.clone();
    HostTensor out(x.dtype, {x.shape[0], dim});
    fill_nan(out);
    CausalConv1dParams params;
    params.rows = rows.tensors();
    params.weight = weight;
    if (variant.bias) params.bias = bias;
    params.activation = variant.activation;
    params.window = window.view().transpose(1, 2);
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t begin = step * rows.num_tokens();
      params.x = x.slice(0, begin, begin + rows.num_tokens());
      params.out = out.view().slice(0, begin, begin + rows.num_tokens());
      golden.call(op, params);
    }
    const HostTensor& stored = *require(golden.file().tensor(name + "_ref"));
    if (stored.num_elements() != x.num_elements()) {
      throw GoldenError{Status(StatusCode::kDataLoss, name + "_ref: not the size of x")};
    }
    const ConstTensorView ref = view_as(stored, {x.shape[0], dim});
    const std::vector<int64_t> live = rows.tokens(true, steps);
    golden.judge_output(name, take(out, live), take(ref, live), name);
    golden.judge_padding(name + " padding", out, rows.tokens(false, steps));
    golden.judge_exact(name + " window", take(window, rows.live_slots()),
                       take(after, rows.live_slots()));
    golden.judge_untouched(name + " other slots", window, before, rows.live_slots());
  }
}

}  // namespace

void run_golden_conv_prefill(GoldenCase& golden) {
  const HostTensor& x = golden.tensor("x", {kAnyGoldenSize, kAnyGoldenSize});
  std::vector<int64_t> start;
  for (int64_t resumed : golden.ints("has_initial_state")) {
    start.push_back(resumed != 0 ? kResumedStart : 0);
  }
  const GoldenRows rows = GoldenRows::prefill(golden.ints("cache_indices"), std::move(start),
                                              golden.ints("query_start_loc"));
  if (rows.num_tokens() != x.shape()[0]) {
    throw GoldenError{Status(StatusCode::kDataLoss, "query_start_loc does not end at x's tokens")};
  }
  run_variants(golden, kPrefill, rows, x, 1);
}

void run_golden_conv_update(GoldenCase& golden) {
  const GoldenRows rows = GoldenRows::decode(golden.ints("cache_indices"));
  const int64_t batch = rows.num_rows();
  const HostTensor& x = golden.tensor("x", {kAnyGoldenSize, batch, kAnyGoldenSize});
  const int64_t steps = x.shape()[0];
  run_variants(golden, kUpdate, rows, view_as(x, {steps * batch, x.shape()[2]}), steps);
}

}  // namespace linestate::testing
