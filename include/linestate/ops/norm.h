// Norms that follow the attention of a layer.
#pragma once

#include <cstdint>
#include <string_view>

#include "linestate/exec_context.h"
#include "linestate/kernel_info.h"
#include "linestate/status.h"

namespace linestate {

/// KDA: per head, out = x * rsqrt(mean(x^2) + eps) * weight * sigmoid(z). f32 arithmetic.
struct GatedRmsNormParams {
  ConstTensorView x;       // [T, HV, V] f32 | bf16 | f16
  ConstTensorView z;       // [T, HV, V] f32 | bf16 | f16, gate logits
  ConstTensorView weight;  // [V] f32 | bf16 | f16
  float eps = 1e-5f;       // > 0
  TensorView out;          // [T, HV, V] f32 | bf16 | f16; may be x itself (same view)
};

Status gated_rms_norm(const GatedRmsNormParams& params, const ExecContext& context,
                      std::string_view kernel = kAutoKernel);
KernelChoice explain_gated_rms_norm(const GatedRmsNormParams& params, const ExecContext& context,
                                    std::string_view kernel = kAutoKernel);

/// Lightning: out = x * rsqrt(mean over the group of x^2, + eps) * weight, then * sigmoid(gate).
/// Channels are cut into num_groups equal contiguous groups. When a group spans ranks, fill
/// sum_sq with rms_sum_sq on every rank, add them up across ranks, and pass the total in.
struct GroupRmsNormParams {
  ConstTensorView x;           // [T, C] f32 | bf16 | f16, C = this rank's channels
  ConstTensorView gate;        // [T, C] f32 | bf16 | f16, logits; undefined = no gate
  ConstTensorView weight;      // [C] f32 | bf16 | f16, this rank's slice
  ConstTensorView sum_sq;      // [T, num_groups] f32, total over ranks; undefined = computed here
  int64_t num_groups = 1;      // groups within x; divides C
  int64_t group_channels = 0;  // channels of a whole group over all ranks; 0 = C / num_groups
  float eps = 1e-5f;           // > 0
  TensorView out;              // [T, C] f32 | bf16 | f16; may be x itself (same view)
};

Status group_rms_norm(const GroupRmsNormParams& params, const ExecContext& context,
                      std::string_view kernel = kAutoKernel);
KernelChoice explain_group_rms_norm(const GroupRmsNormParams& params, const ExecContext& context,
                                    std::string_view kernel = kAutoKernel);

/// This rank's part of the sums of squares: sum_sq[t, g] = sum over group g of x[t]^2.
struct RmsSumSqParams {
  ConstTensorView x;  // [T, C] f32 | bf16 | f16
  TensorView sum_sq;  // [T, num_groups] f32
};

Status rms_sum_sq(const RmsSumSqParams& params, const ExecContext& context,
                  std::string_view kernel = kAutoKernel);
KernelChoice explain_rms_sum_sq(const RmsSumSqParams& params, const ExecContext& context,
                                std::string_view kernel = kAutoKernel);

}  // namespace linestate
