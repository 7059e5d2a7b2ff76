#include "ops/causal_conv1d/conv_check.h"

#include "base/check.h"

namespace linestate {
namespace {

Status check_inputs(const CausalConv1dParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_shape("x", params.x, {kAnySize, kAnySize}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("x", params.x));
  LINESTATE_RETURN_IF_ERROR(check_placement("x", params.x, context));
  const int64_t channels = params.x.shape[1];
  LINESTATE_RETURN_IF_ERROR(check_shape("weight", params.weight, {channels, kAnySize}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("weight", params.weight));
  LINESTATE_RETURN_IF_ERROR(check_placement("weight", params.weight, context));
  const int64_t width = params.weight.shape[1];
  if (width < 2 || width > 4) {
    return invalid_argument("weight: expected a width of 2 to 4, got ", width);
  }
  if (params.bias.defined()) {
    LINESTATE_RETURN_IF_ERROR(check_shape("bias", params.bias, {channels}));
    LINESTATE_RETURN_IF_ERROR(check_compute_dtype("bias", params.bias));
    LINESTATE_RETURN_IF_ERROR(check_placement("bias", params.bias, context));
  }
  if (params.activation != Activation::kNone && params.activation != Activation::kSilu) {
    return invalid_argument("activation: expected none (0) or silu (1), got ",
                            static_cast<int>(params.activation));
  }
  return {};
}

Status check_window(const CausalConv1dParams& params, const ExecContext& context) {
  const ConstTensorView window = params.window;
  LINESTATE_RETURN_IF_ERROR(
      check_shape("window", window, {kAnySize, params.x.shape[1], params.weight.shape[1] - 1}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("window", window, {params.x.dtype, DType::kF32}));
  LINESTATE_RETURN_IF_ERROR(check_placement("window", window, context));
  return check_no_self_overlap("window", window);
}

Status check_out(const CausalConv1dParams& params, const ExecContext& context) {
  const ConstTensorView out = params.out;
  LINESTATE_RETURN_IF_ERROR(check_shape("out", out, {params.x.shape[0], params.x.shape[1]}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("out", out));
  LINESTATE_RETURN_IF_ERROR(check_placement("out", out, context));
  return check_no_self_overlap("out", out);
}

Status check_aliasing(const CausalConv1dParams& params) {
  struct Named {
    const char* name;
    ConstTensorView tensor;
  };
  const Named written[] = {{"out", params.out}, {"window", params.window}};
  const Named read[] = {{"x", params.x}, {"weight", params.weight}, {"bias", params.bias}};
  for (const Named& output : written) {
    LINESTATE_RETURN_IF_ERROR(check_snapshots_apart(params.snapshots, output.name, output.tensor));
    for (const Named& input : read) {
      LINESTATE_RETURN_IF_ERROR(
          check_no_overlap(output.name, output.tensor, input.name, input.tensor));
    }
  }
  return check_no_overlap("out", params.out, "window", params.window);
}

}  // namespace

Status check_conv_tensors(const CausalConv1dParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_inputs(params, context));
  LINESTATE_RETURN_IF_ERROR(check_window(params, context));
  LINESTATE_RETURN_IF_ERROR(check_out(params, context));
  return check_aliasing(params);
}

}  // namespace linestate
