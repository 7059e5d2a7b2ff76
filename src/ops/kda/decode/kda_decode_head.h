// One value head of one decode row, as kda_decode runs it and as replay runs it where it must give
// the same bits.
#pragma once

#include <cstdint>

#include "cpu/scratch.h"
#include "linestate/exec_context.h"
#include "linestate/ops/kda.h"
#include "ops/kda/kda_head_token.h"
#include "ops/kda/kda_ref_step.h"

namespace linestate {

/// Rows of the state that decode steps together.
inline constexpr int kKdaStepRows = 2;

struct KdaDecodeScratch {
  float* dt_bias;  // [K]
  KdaHeadToken token;
  float* s;      // [2, K] rows of S
  float* zeros;  // [K] what a fresh row starts from
  float* o;      // [V]
};

KdaDecodeScratch take_kda_decode_scratch(const KdaParams& params, Scratch& scratch);
void decode_kda_head_cpu(const KdaParams& params, const ExecContext& context, int64_t n, int64_t j,
                         KdaDecodeScratch& scratch);

struct KdaRefDecodeScratch {
  float* S;  // [V, K]
  KdaRefToken token;
};

KdaRefDecodeScratch take_kda_ref_decode_scratch(const KdaParams& params, Scratch& scratch);
void decode_kda_head_ref(const KdaParams& params, const ExecContext& context, int64_t n, int64_t j,
                         KdaRefDecodeScratch& scratch);

}  // namespace linestate
