// The f32 maths that every CPU row of every KDA phase shares: one function for the decay, one for
// beta, one for the inverse norm. Written for four lanes at a time and free of branches: left to
// itself the compiler keeps these loops scalar, which costs as much as the recurrence.
#pragma once

#include <cmath>
#include <cstdint>

#include "linestate/ops/kda.h"
#include "ops/kda/kda_lanes.h"

namespace linestate {

inline constexpr float kKdaNormEpsilon = 1e-6f;

/// e^x within 1 ulp, for the x <= 0 that occur here. Below -87.3 the result is 0: a decay that
/// small is gone. NaN stays NaN; above 88 the result is e^88.
inline Lanes kda_exp(Lanes x) {
  const Lanes kLog2E = lanes_of(1.44269504f);
  const Lanes kLn2High = lanes_of(0.693145752f);  // 16 significant bits: n * kLn2High is exact
  const Lanes kLn2Low = lanes_of(1.42860682e-6f);
  const Lanes kRound = lanes_of(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Lanes kLowest = lanes_of(-87.3f);
  const Lanes kHighest = lanes_of(88.0f);
  const LaneMask vanished = x < kLowest;
  Lanes c = lanes_select(vanished, kLowest, x);
  c = lanes_select(c > kHighest, kHighest, c);
  const Lanes shifted = c * kLog2E + kRound;
  const Lanes n = shifted - kRound;
  const Lanes r = (c - n * kLn2High) - n * kLn2Low;  // |r| <= ln2 / 2
  // Taylor: the first term left out is r^8 / 8! < 6e-9.
  Lanes p = lanes_of(1.0f / 5040.0f);
  for (const float c_i : {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f}) {
    p = p * r + lanes_of(c_i);
  }
  p = (p * r) * r + r;
  // The low bits of `shifted` are n; moved up by 23 they are an exponent.
  constexpr int32_t kOne = 0x3f800000;
  const LaneMask power = (lanes_bits(shifted) << 23) + LaneMask{kOne, kOne, kOne, kOne};
  const Lanes value = p * lanes_from_bits(power) + lanes_from_bits(power);
  return lanes_select(vanished, lanes_of(0.0f), value);
}

/// log(1 + e^x) without overflow: max(x, 0) + log1p(e^-|x|).
inline Lanes kda_softplus(Lanes x) {
  const Lanes e = kda_exp(-lanes_abs(x));
  // log1p(e) = 2 atanh(s) with s = e / (2 + e) <= 1/3; the first term left out is s^15 / 15.
  const Lanes s = e / (lanes_of(2.0f) + e);
  const Lanes s2 = s * s;
  Lanes p = lanes_of(1.0f / 13.0f);
  for (const float c_i : {1.0f / 11.0f, 1.0f / 9.0f, 1.0f / 7.0f, 1.0f / 5.0f, 1.0f / 3.0f}) {
    p = p * s2 + lanes_of(c_i);
  }
  const Lanes twice = s + s;
  const Lanes tail = twice + twice * (s2 * p);
  return lanes_select(x < lanes_of(0.0f), lanes_of(0.0f), x) + tail;
}

/// 1 / (1 + e^-x) without overflow.
inline Lanes kda_sigmoid(Lanes x) {
  const Lanes one = lanes_of(1.0f);
  const Lanes e = kda_exp(-lanes_abs(x));
  return lanes_select(x < lanes_of(0.0f), e, one) / (one + e);
}

/// What the gate of one value head needs besides a.
struct KdaGateHead {
  KdaGate form = KdaGate::kSoftplus;
  float exp_A = 1.0f;              // exp(A_log[j])
  float lower_bound = 0.0f;        // kBounded
  const float* dt_bias = nullptr;  // [K], null for kActivated
};

/// The gate: alpha[k] = exp(g[k]) for k in [0, n) from the raw gate values a; n a multiple of 4.
/// alpha may be a.
inline void kda_decay(const KdaGateHead& head, const float* a, int64_t n, float* alpha) {
  const Lanes exp_A = lanes_of(head.exp_A);
  const Lanes lower_bound = lanes_of(head.lower_bound);
  for (int64_t k = 0; k < n; k += kLaneCount) {
    Lanes g = lanes_load(a + k);
    if (head.form == KdaGate::kSoftplus) {
      g = -exp_A * kda_softplus(g + lanes_load(head.dt_bias + k));
    } else if (head.form == KdaGate::kBounded) {
      g = lower_bound * kda_sigmoid(exp_A * (g + lanes_load(head.dt_bias + k)));
    }
    lanes_store(alpha + k, kda_exp(g));
  }
}

/// Beta from its tensor value.
inline float kda_beta(KdaBeta form, float b) {
  return form == KdaBeta::kLogits ? kda_sigmoid(lanes_of(b))[0] : b;
}

/// rsqrt(sum x^2 + 1e-6) over n elements, n a multiple of 16; 1 when x is already normalised.
inline float kda_inverse_norm(const float* x, int64_t n, bool normalized) {
  if (normalized) return 1.0f;
  Lanes sum[4] = {};
  for (int64_t k = 0; k < n; k += 4 * kLaneCount) {
    for (int64_t l = 0; l < 4; ++l) {
      const Lanes part = lanes_load(x + k + l * kLaneCount);
      sum[l] += part * part;
    }
  }
  const float total = lanes_sum((sum[0] + sum[2]) + (sum[1] + sum[3]));
  return 1.0f / std::sqrt(total + kKdaNormEpsilon);
}

/// The factor on q^: params.scale, or K^-0.5 when that is 0.
inline float kda_scale(const KdaParams& params) {
  if (params.scale != 0.0f) return params.scale;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(params.q.shape[2])));
}

}  // namespace linestate
