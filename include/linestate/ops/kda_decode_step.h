// A whole decode step of a KDA layer in one call: convolution, gate, delta rule, gated norm.
#pragma once

#include <cstdint>
#include <string_view>

#include "linestate/ops/causal_conv1d.h"
#include "linestate/ops/kda.h"

namespace linestate {

/// What these calls do together, one token a row, with the same roundings:
///   c = causal_conv1d_update(x)        16-bit x: rounded to its dtype
///   a = kda_decode(q | k | v of c)     in f32 when a norm follows
///   out = gated_rms_norm(a, z)
/// The slot's window and state move together, and a snapshot keeps both.
struct KdaDecodeStepParams {
  RowTensors rows;    // as in kda_decode
  ConstTensorView x;  // [N, 2*H*K + HV*V] q | k | v before the convolution; f32 | bf16 | f16

  ConstTensorView conv_weight;                // [2*H*K + HV*V, W], W = 2..4; f32 | bf16 | f16
  ConstTensorView conv_bias;                  // [2*H*K + HV*V]; undefined = none
  Activation activation = Activation::kSilu;  // of the convolution's output
  TensorView window;                          // [P, 2*H*K + HV*V, W-1] in place; dtype of x, or f32

  ConstTensorView gate;                    // [N, HV, K] dtype of x or f32
  ConstTensorView beta;                    // [N, HV]    dtype of x or f32
  KdaGate gate_form = KdaGate::kSoftplus;  // how the log decay comes from gate
  KdaBeta beta_form = KdaBeta::kLogits;    // how beta comes from b
  ConstTensorView A_log;                   // [HV] f32; not read for kActivated
  ConstTensorView dt_bias;                 // [HV, K] f32; not read for kActivated
  float lower_bound = 0.0f;                // < 0 for kBounded, else 0
  float scale = 0.0f;                      // 0 = K^-0.5
  bool qk_normalized = false;              // true: no l2 norm of q and k
  TensorView state;                        // [P, HV, V, K] in place; f32 | bf16 | f16

  ConstTensorView norm_weight;  // [V] f32 | bf16 | f16; undefined = no norm, out is a
  ConstTensorView z;            // [N, HV, V] f32 | bf16 | f16, defined exactly when norm_weight is
  float eps = 1e-5f;            // > 0

  TensorView out;          // [N, HV, V] f32 | bf16 | f16; overlaps nothing else
  SnapshotPlan snapshots;  // states and windows to keep
  int32_t layer = 0;       // only for error reports
};

/// H is what x has channels for. Padding rows and rows without a valid token get zero output.
/// REQUIRES: HV a multiple of H; K and V multiples of 16 up to 256.
/// Errors: kInvalidArgument names the tensor; kUnsupported lists every refusal.
/// Deterministic: bits depend on the row alone, and on a device are those of the three calls.
Status kda_decode_step(const KdaDecodeStepParams& params, const ExecContext& context,
                       std::string_view kernel = kAutoKernel);
Result<int64_t> kda_decode_step_workspace_bytes(const KdaDecodeStepParams& params,
                                                const ExecContext& context,
                                                std::string_view kernel = kAutoKernel);
KernelChoice explain_kda_decode_step(const KdaDecodeStepParams& params, const ExecContext& context,
                                     std::string_view kernel = kAutoKernel);

}  // namespace linestate
