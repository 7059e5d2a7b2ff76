// Elementary functions made of f32 adds, products and selects alone, so that a loop over channels
// becomes vector code and gives the same bits on every CPU and in every lane.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace linestate {

/// `value` where `keep` is all ones, +0 where it is zero. Selects are masks and comparisons are of
/// integers, because a float comparison in the loop becomes a branch in some compilers.
inline float lanewise_mask(float value, uint32_t keep) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & keep);
}

/// exp(x) within 2 ulp for x <= 0; below -87, where the result leaves the normal range, 0.
/// NaN stays NaN.
inline float lanewise_exp_nonpositive(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  // ln 2 in two parts: n * kLn2High is exact for |n| < 2^9.
  constexpr float kLn2High = 0x1.62e4p-1f;
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low mantissa bits.
  constexpr float kRound = 0x1.8p23f;
  constexpr uint32_t kInfinity = 0x7f800000u;
  constexpr uint32_t kFirstFlushed = std::bit_cast<uint32_t>(87.0f) + 1u;
  const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
  const bool flush = magnitude - kFirstFlushed <= kInfinity - kFirstFlushed;  // not for NaN
  const uint32_t keep = static_cast<uint32_t>(flush) - 1u;

  const float in = lanewise_mask(x, keep);
  const float shifted = in * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (in - n * kLn2High) - n * kLn2Low;  // |r| <= ln 2 / 2
  float p = 1.0f / 5040.0f;                           // Taylor: the rest is below 6e-9
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  return lanewise_mask(p * std::bit_cast<float>(exponent), keep);
}

/// 1 / (1 + exp(-x)) without an overflow on either side.
inline float lanewise_sigmoid(float x) {
  const float e = lanewise_exp_nonpositive(-std::fabs(x));
  const uint32_t negative = 0u - (std::bit_cast<uint32_t>(x) >> 31);
  const float numerator = lanewise_mask(e, negative) + lanewise_mask(1.0f, ~negative);
  return numerator / (1.0f + e);
}

}  // namespace linestate
