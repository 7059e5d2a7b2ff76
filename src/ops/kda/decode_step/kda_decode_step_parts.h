// The step as the three operators that it is made of.
#pragma once

#include "linestate/ops/kda_decode_step.h"
#include "linestate/ops/norm.h"

namespace linestate {

struct KdaStepParts {
  CausalConv1dParams conv;
  KdaParams kda;
  GatedRmsNormParams norm;  // without a weight: no norm
  int64_t bytes = 0;        // of what lies between them
};

/// Heads of q and k that `x` has channels for; 0 when it has not. REQUIRES: state [P, HV, V, K].
int64_t kda_step_heads(const KdaDecodeStepParams& params);

/// The operators over buffers that begin at `memory`; null counts the bytes.
/// REQUIRES: kda_step_heads(params) > 0.
KdaStepParts kda_step_parts(const KdaDecodeStepParams& params, void* memory, Device device);

/// The recurrence with q, k and v where x has them: what kernels and checks look at.
KdaParams kda_step_recurrence(const KdaDecodeStepParams& params, const ConstTensorView& packed);

}  // namespace linestate
