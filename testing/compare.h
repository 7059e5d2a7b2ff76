// How results are judged: relative RMS error against a reference, or bits.
#pragma once

#include <cstdint>
#include <string>

#include "linestate/tensor.h"

namespace linestate::testing {

struct Difference {
  double rel = 0.0;      // ||actual - expected|| / ||expected||; 0 when both are zero
  double max_abs = 0.0;  // largest |actual - expected|
  double ref_max = 0.0;  // largest |expected|
  int64_t worst = -1;    // flat row-major index of max_abs
  bool finite = true;    // no NaN or infinity in actual
  std::string text() const;
};

/// Same shape required (throws std::invalid_argument otherwise). A value that is not finite makes
/// `rel` infinite unless both sides hold the same infinity.
Difference compare(const ConstTensorView& actual, const ConstTensorView& expected);

/// Relative RMS of rounding `expected` to `dtype`: the least error any output of that dtype has.
double rounding_error(const ConstTensorView& expected, DType dtype);

/// Empty when every element has the same bits; otherwise names the first difference.
std::string bit_difference(const ConstTensorView& actual, const ConstTensorView& expected);

/// Empty when every element is +0 or -0.
std::string nonzero(const ConstTensorView& tensor);

}  // namespace linestate::testing
