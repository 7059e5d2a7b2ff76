// The f32 maths that every CPU row of every KDA phase shares: one function for the decay, one for
// beta, one for the inverse norm. Loops are free of branches so that the compiler vectorises them;
// every lane does the same IEEE operations, so the width does not change a bit.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "linestate/ops/kda.h"

namespace linestate {

inline constexpr float kKdaNormEpsilon = 1e-6f;

/// e^x within 1 ulp. Below -87.3 the result is 0: a decay that small is gone. NaN stays NaN.
inline float kda_exp(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693145752f;  // few significant bits: n * kLn2High is exact
  constexpr float kLn2Low = 1.42860682e-6f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kLowest = -87.3f;
  constexpr float kHighest = 88.0f;
  float c = x < kLowest ? kLowest : x;
  c = c > kHighest ? kHighest : c;
  const float shifted = c * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (c - n * kLn2High) - n * kLn2Low;  // |r| <= ln2 / 2
  // Taylor: the first term left out is r^8 / 8! < 6e-9.
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = (p * r) * r + r;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound);
  const float power = std::bit_cast<float>((exponent + 127u) << 23);
  const float value = p * power + power;
  return x < kLowest ? 0.0f : value;
}

/// log(1 + e^x) without overflow: max(x, 0) + log1p(e^-|x|).
inline float kda_softplus(float x) {
  const float e = kda_exp(-std::fabs(x));
  // log1p(e) = 2 atanh(s) with s = e / (2 + e) <= 1/3; the first term left out is s^15 / 15.
  const float s = e / (2.0f + e);
  const float s2 = s * s;
  float p = 1.0f / 13.0f;
  p = p * s2 + 1.0f / 11.0f;
  p = p * s2 + 1.0f / 9.0f;
  p = p * s2 + 1.0f / 7.0f;
  p = p * s2 + 1.0f / 5.0f;
  p = p * s2 + 1.0f / 3.0f;
  const float twice = 2.0f * s;
  const float tail = twice + twice * (s2 * p);
  return (x > 0.0f ? x : 0.0f) + tail;
}

/// 1 / (1 + e^-x) without overflow.
inline float kda_sigmoid(float x) {
  const float e = kda_exp(-std::fabs(x));
  const float numerator = x < 0.0f ? e : 1.0f;
  return numerator / (1.0f + e);
}

/// What the gate of one value head needs besides a.
struct KdaGateHead {
  KdaGate form = KdaGate::kSoftplus;
  float exp_A = 1.0f;              // exp(A_log[j])
  float lower_bound = 0.0f;        // kBounded
  const float* dt_bias = nullptr;  // [K], null for kActivated
};

/// The gate: alpha[k] = exp(g[k]) for k in [0, n), from the raw gate values a.
inline void kda_decay(const KdaGateHead& head, const float* a, int64_t n, float* alpha) {
  switch (head.form) {
    case KdaGate::kSoftplus:
      for (int64_t k = 0; k < n; ++k) {
        alpha[k] = kda_exp(-head.exp_A * kda_softplus(a[k] + head.dt_bias[k]));
      }
      return;
    case KdaGate::kBounded:
      for (int64_t k = 0; k < n; ++k) {
        alpha[k] = kda_exp(head.lower_bound * kda_sigmoid(head.exp_A * (a[k] + head.dt_bias[k])));
      }
      return;
    case KdaGate::kActivated:
      for (int64_t k = 0; k < n; ++k) alpha[k] = kda_exp(a[k]);
      return;
  }
}

/// Beta from its tensor value.
inline float kda_beta(KdaBeta form, float b) {
  return form == KdaBeta::kLogits ? kda_sigmoid(b) : b;
}

/// rsqrt(sum x^2 + 1e-6) over n elements, n a multiple of 16; 1 when x is already normalised.
inline float kda_inverse_norm(const float* x, int64_t n, bool normalized) {
  if (normalized) return 1.0f;
  constexpr int64_t kLanes = 16;
  float lane[kLanes] = {};
  for (int64_t k = 0; k < n; k += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lane[l] += x[k + l] * x[k + l];
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return 1.0f / std::sqrt(lane[0] + kKdaNormEpsilon);
}

/// The factor on q^: params.scale, or K^-0.5 when that is 0.
inline float kda_scale(const KdaParams& params) {
  if (params.scale != 0.0f) return params.scale;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(params.q.shape[2])));
}

}  // namespace linestate
