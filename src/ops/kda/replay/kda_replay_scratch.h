// What the f32 row of replay decode keeps of one head.
#pragma once

#include "ops/kda/decode/kda_decode_head.h"

namespace linestate {

struct KdaReplayScratch {
  KdaDecodeScratch decode;
  float* gamma;   // [K] product of decays since the checkpoint
  float* k;       // [K] Gamma k^
  float* q;       // [K] Gamma q^
  float* keys;    // [R, K] kappa, this token's k^ behind the pending ones
  float* values;  // [R, V] u
  float* k_dot;   // [R] kappa_j . k^
  float* q_dot;   // [R] kappa_j . q^
};

}  // namespace linestate
