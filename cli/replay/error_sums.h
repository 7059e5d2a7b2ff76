// Sums of squares per head, from which relative RMS errors of a request and layer are made.
#pragma once

#include <cstdint>
#include <vector>

#include "linestate/tensor.h"

namespace linestate::cli {

struct HeadSums {
  double error = 0.0;     // sum (actual - reference)^2
  double norm = 0.0;      // sum reference^2
  double rounding = 0.0;  // sum (reference rounded to the output's dtype - reference)^2
};

struct ErrorSums {
  std::vector<HeadSums> heads;

  explicit ErrorSums(int64_t num_heads = 0) : heads(static_cast<size_t>(num_heads)) {}
  HeadSums total() const;
  /// Head with the largest error sum.
  int64_t worst_head() const;
};

/// sqrt(part / whole); 0 for 0 / 0, infinity when only the whole is 0, NaN stays NaN.
double relative_rms(double part, double whole);

/// Adds tokens of an output. Both contiguous [T, heads, dim], f32, bf16 or f16; the rounding is
/// that of the reference to actual's dtype.
void add_output_errors(const ConstTensorView& actual, const ConstTensorView& reference,
                       ErrorSums& sums);
/// Adds one slot's recurrent state, [heads, a, b] each, contiguous; without rounding.
void add_state_errors(const ConstTensorView& actual, const ConstTensorView& reference,
                      ErrorSums& sums);

}  // namespace linestate::cli
