// Decay of a state by whole tokens, in f32 but without the drift of an f32 factor.
#pragma once

#include <cmath>
#include <cstdint>

namespace linestate {

/// lambda^n as a sum of two f32. A slow head multiplies its state by a factor just below one
/// thousands of times; rounding that factor, or S * hi, is a bias of up to 3e-8 each time, always
/// to the same side. With hi = 1 for slow heads S * hi is exact, and S * hi + (S * lo + ...) rounds
/// the small decrement instead.
struct SplitDecay {
  float hi = 1.0f;
  float lo = 0.0f;
};

/// exp(-slope * tokens). REQUIRES: slope >= 0, tokens >= 0, so that the exponent is never positive.
inline double decay_f64(float slope, int64_t tokens) {
  return std::exp(-static_cast<double>(slope) * static_cast<double>(tokens));
}

inline SplitDecay split_decay(float slope, int64_t tokens) {
  const double decay = decay_f64(slope, tokens);
  SplitDecay split;
  split.hi = decay > 0.5 ? 1.0f : static_cast<float>(decay);
  split.lo = static_cast<float>(decay - static_cast<double>(split.hi));
  return split;
}

}  // namespace linestate
