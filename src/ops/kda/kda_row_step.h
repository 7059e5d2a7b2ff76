// One token on one row of the state, in f32: decode, verify and replay share it. The order of
// additions is fixed, so the same token on the same row gives the same bits everywhere.
#pragma once

#include <cstdint>

#include "ops/kda/kda_lanes.h"

namespace linestate {

/// s [K] <- s * alpha; returns s k.
inline float kda_decay_and_predict(const float* alpha, const float* key, int64_t K, float* s) {
  Lanes sum[4] = {};
  for (int64_t k = 0; k < K; k += 16) {
    for (int64_t l = 0; l < 4; ++l) {
      const int64_t i = k + l * kLaneCount;
      const Lanes decayed = lanes_load(s + i) * lanes_load(alpha + i);
      lanes_store(s + i, decayed);
      sum[l] += decayed * lanes_load(key + i);
    }
  }
  return lanes_sum((sum[0] + sum[2]) + (sum[1] + sum[3]));
}

/// s [K] <- s + u k; returns s q.
inline float kda_update_and_read(const float* key, const float* query, float u, int64_t K,
                                 float* s) {
  const Lanes u4 = lanes_of(u);
  Lanes sum[4] = {};
  for (int64_t k = 0; k < K; k += 16) {
    for (int64_t l = 0; l < 4; ++l) {
      const int64_t i = k + l * kLaneCount;
      const Lanes updated = lanes_load(s + i) + u4 * lanes_load(key + i);
      lanes_store(s + i, updated);
      sum[l] += updated * lanes_load(query + i);
    }
  }
  return lanes_sum((sum[0] + sum[2]) + (sum[1] + sum[3]));
}

/// s [K] <- s * alpha + u k, the bits of the two above.
inline void kda_decay_and_update(const float* alpha, const float* key, float u, int64_t K,
                                 float* s) {
  const Lanes u4 = lanes_of(u);
  for (int64_t k = 0; k < K; k += kLaneCount) {
    const Lanes decayed = lanes_load(s + k) * lanes_load(alpha + k);
    lanes_store(s + k, decayed + u4 * lanes_load(key + k));
  }
}

/// a b over K elements, and in the order of the sums above.
inline float kda_dot(const float* a, const float* b, int64_t K) {
  Lanes sum[4] = {};
  for (int64_t k = 0; k < K; k += 16) {
    for (int64_t l = 0; l < 4; ++l) {
      const int64_t i = k + l * kLaneCount;
      sum[l] += lanes_load(a + i) * lanes_load(b + i);
    }
  }
  return lanes_sum((sum[0] + sum[2]) + (sum[1] + sum[3]));
}

}  // namespace linestate
