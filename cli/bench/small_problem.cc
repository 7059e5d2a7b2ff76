// Single operators without a recurrence: convolutions, norms, work on slots.
#include <utility>

#include "cli/bench/bench_problem_parts.h"
#include "linestate/ops/kda_verify.h"
#include "linestate/ops/norm.h"
#include "linestate/ops/state_ops.h"

namespace linestate::cli {

TensorView make_windows(TensorMaker& make, const BenchSpec& spec, int64_t slots) {
  const TensorView windows =
      make.normal(spec.io_dtype, {slots, spec.layer.conv_width - 1, spec.layer.conv_channels()});
  return windows.defined() ? windows.transpose(1, 2) : windows;
}

BenchProblem conv_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec,
                          const LayerWeightTensors& weights) {
  const int64_t channels = spec.layer.conv_channels();
  const int64_t tokens = spec.layout.total();
  const TensorView weight = make.copy(weights.conv_weight);
  const TensorView window = make_windows(make, spec, parts->rows.slots);
  const auto one_set = [&] {
    CausalConv1dParams params;
    params.x = make.normal(spec.io_dtype, {tokens, channels});
    params.weight = weight;
    params.activation = spec.layer.conv_activation;
    params.window = window;
    params.out = make.zeros(spec.io_dtype, {tokens, channels});
    return params;
  };
  const auto set_call = [rows = parts->rows](CausalConv1dParams& params, int64_t call) {
    params.rows = rows.of_call(call);
  };
  if (spec.op.phase == BenchPhase::kPrompt) {
    return finish<CausalConv1dParams>(parts, make, one_set, set_call,
                                      {causal_conv1d_prefill, explain_causal_conv1d_prefill,
                                       causal_conv1d_prefill_workspace_bytes});
  }
  if (spec.op.phase == BenchPhase::kStep) {
    return finish<CausalConv1dParams>(
        parts, make, one_set, set_call,
        {causal_conv1d_update, explain_causal_conv1d_update, causal_conv1d_update_workspace_bytes});
  }
  return finish<CausalConv1dVerifyParams>(
      parts, make,
      [&] {
        return CausalConv1dVerifyParams{one_set(), {}};
      },
      [set_call](CausalConv1dVerifyParams& params, int64_t call) { set_call(params.conv, call); },
      {causal_conv1d_verify, explain_causal_conv1d_verify, causal_conv1d_verify_workspace_bytes});
}

BenchProblem norm_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec,
                          const LayerWeightTensors& weights) {
  const HeadShape& heads = spec.layer.heads;
  const int64_t tokens = spec.layout.total();
  const TensorView weight = make.copy(weights.norm_weight);
  if (spec.op.layer == LayerKind::kKda) {
    return finish<GatedRmsNormParams>(
        parts, make,
        [&] {
          GatedRmsNormParams params;
          params.x = make.normal(spec.io_dtype, {tokens, heads.num_value_heads, heads.v_dim});
          params.z = make.normal(spec.io_dtype, {tokens, heads.num_value_heads, heads.v_dim});
          params.weight = weight;
          params.eps = spec.layer.norm_eps;
          params.out = make.zeros(spec.io_dtype, {tokens, heads.num_value_heads, heads.v_dim});
          return params;
        },
        [](GatedRmsNormParams&, int64_t) {}, {gated_rms_norm, explain_gated_rms_norm, nullptr});
  }
  const int64_t channels = spec.layer.out_channels();
  return finish<GroupRmsNormParams>(
      parts, make,
      [&] {
        GroupRmsNormParams params;
        params.x = make.normal(spec.io_dtype, {tokens, channels});
        params.gate = make.normal(spec.io_dtype, {tokens, channels});
        params.weight = weight;
        params.num_groups = spec.layer.norm_groups;
        params.eps = spec.layer.norm_eps;
        params.out = make.zeros(spec.io_dtype, {tokens, channels});
        return params;
      },
      [](GroupRmsNormParams&, int64_t) {}, {group_rms_norm, explain_group_rms_norm, nullptr});
}

namespace {

// Planes that the spans of the parameters look into.
struct Planes {
  std::vector<TensorView> written;
  std::vector<ConstTensorView> read;
};

}  // namespace

BenchProblem state_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec) {
  const HeadShape& heads = spec.layer.heads;
  auto planes = std::make_shared<Planes>();
  planes->written = {make.normal(spec.state_dtype, {parts->rows.slots, heads.num_value_heads,
                                                    heads.v_dim, heads.k_dim}),
                     make_windows(make, spec, parts->rows.slots)};
  planes->read.assign(planes->written.begin(), planes->written.end());
  if (spec.op.name == "state_clear") {
    return finish<StateClearParams>(
        parts, make,
        [&] {
          return StateClearParams{planes->written, {}};
        },
        [planes, rows = parts->rows](StateClearParams& params, int64_t call) {
          params.slots = rows.of_call(call).slot;
        },
        {state_clear, explain_state_clear, nullptr});
  }
  return finish<StateCopyParams>(
      parts, make,
      [&] {
        return StateCopyParams{planes->read, planes->written, {}, {}};
      },
      [planes, rows = parts->rows](StateCopyParams& params, int64_t call) {
        params.src_slots = rows.of_call(call).slot;
        params.dst_slots = rows.next_slots(call);
      },
      {state_copy, explain_state_copy, nullptr});
}

}  // namespace linestate::cli
