// Element access for tests in double precision. Written apart from the library's own conversions,
// through the definition of the formats, so that one can check the other.
#pragma once

#include <cstdint>

#include "linestate/tensor.h"

namespace linestate::testing {

double load_f64(const void* data, DType dtype, int64_t index);
/// Rounds once to nearest even; integers must be exact.
void store_f64(void* data, DType dtype, int64_t index, double value);

/// `value` rounded to nearest even to a float format with that many significand bits (hidden one
/// included), least exponent and largest finite value; overflow gives infinity.
double round_to_format(double value, int significand_bits, int min_exponent, double largest);
/// `value` as it comes back after a store in `dtype`.
double round_to(DType dtype, double value);

}  // namespace linestate::testing
