// Short depthwise causal convolution over packed tokens with a per-slot window.
//
//   y[t] = act(bias + sum_j weight[:, j] * x[t - W + 1 + j])          j = 0 .. W-1, f32 products
//
// Tokens before the sequence come from the slot's window: its last W-1 inputs, oldest first. A
// fresh row (start = 0) sees zeros. The new window is the last W-1 of (old window ++ the row's
// valid tokens), for any length including 0. 16-bit outputs are correctly rounded: every kernel
// gives the bits of the exact result. Source: SGLang causal_conv1d, tests/golden/README.md.
#pragma once

#include <cstdint>
#include <string_view>

#include "linestate/exec_context.h"
#include "linestate/kernel_info.h"
#include "linestate/rows.h"
#include "linestate/status.h"

namespace linestate {

enum class Activation : uint8_t { kNone, kSilu };

struct CausalConv1dParams {
  RowTensors rows;
  ConstTensorView x;       // prefill [T, channels], update [N, channels]; f32 | bf16 | f16
  ConstTensorView weight;  // [channels, W], W = 2..4; f32 | bf16 | f16
  ConstTensorView bias;    // [channels] f32 | bf16 | f16; undefined = none
  Activation activation = Activation::kSilu;

  TensorView window;  // [P, channels, W-1] in place; dtype of x, or f32 (both keep x exactly)
  TensorView out;     // shape of x; f32 | bf16 | f16; must not overlap x
  int32_t layer = 0;  // only for error reports
};

/// Any number of tokens a row. Errors: kInvalidArgument (shape, dtype, offsets), kUnsupported.
/// Deterministic; a row's result does not depend on its batch mates or on the thread count.
Status causal_conv1d_prefill(const CausalConv1dParams& params, const ExecContext& context,
                             std::string_view kernel = kAutoKernel);
Result<int64_t> causal_conv1d_prefill_workspace_bytes(const CausalConv1dParams& params,
                                                      const ExecContext& context,
                                                      std::string_view kernel = kAutoKernel);
KernelChoice explain_causal_conv1d_prefill(const CausalConv1dParams& params,
                                           const ExecContext& context,
                                           std::string_view kernel = kAutoKernel);

/// One token a row: token n belongs to row n. Same result as prefill of one token, bit for bit.
Status causal_conv1d_update(const CausalConv1dParams& params, const ExecContext& context,
                            std::string_view kernel = kAutoKernel);
Result<int64_t> causal_conv1d_update_workspace_bytes(const CausalConv1dParams& params,
                                                     const ExecContext& context,
                                                     std::string_view kernel = kAutoKernel);
KernelChoice explain_causal_conv1d_update(const CausalConv1dParams& params,
                                          const ExecContext& context,
                                          std::string_view kernel = kAutoKernel);

}  // namespace linestate
