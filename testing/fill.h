// Repeatable contents for tensors. Values depend on (seed, element index) alone.
#pragma once

#include <cstdint>

#include "linestate/tensor.h"

namespace linestate::testing {

/// SplitMix64 finaliser: a good 64-bit hash of one word.
inline uint64_t hash64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Small sequential generator over hash64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(hash64(seed)) {}
  uint64_t next() { return hash64(state_++); }
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Integer in [low, high].
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  /// Standard normal (Box-Muller).
  double normal();

 private:
  uint64_t state_;
};

/// mean + scale * N(0, 1), rounded to the dtype.
void fill_normal(const TensorView& tensor, uint64_t seed, double scale = 1.0, double mean = 0.0);
void fill_uniform(const TensorView& tensor, uint64_t seed, double low, double high);
void fill_constant(const TensorView& tensor, double value);
/// Quiet NaN everywhere: what must not be read, or must be overwritten.
void fill_nan(const TensorView& tensor);

}  // namespace linestate::testing
