#include "testing/half.h"

#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

namespace linestate::testing {
namespace {

constexpr double kLargestBf16 = 0x1.fep127;
constexpr double kLargestF16 = 65504.0;

double decode(uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int sign = (bits >> 15) & 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  double magnitude = 0.0;
  if (exponent == (1 << exponent_bits) - 1) {
    magnitude = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                              : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, 1 - bias - fraction_bits);
  } else {
    magnitude = std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
  }
  return sign != 0 ? -magnitude : magnitude;
}

// REQUIRES: value is representable.
uint16_t encode(double value, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const int all_ones = (1 << exponent_bits) - 1;
  if (std::isnan(value)) {
    return static_cast<uint16_t>(sign | (all_ones << fraction_bits) | (1 << (fraction_bits - 1)));
  }
  if (std::isinf(value)) return static_cast<uint16_t>(sign | (all_ones << fraction_bits));
  const double magnitude = std::fabs(value);
  if (magnitude == 0.0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  const auto scaled = static_cast<int>(std::ldexp(magnitude, fraction_bits - exponent));
  if (scaled < (1 << fraction_bits)) return static_cast<uint16_t>(sign | scaled);  // subnormal
  return static_cast<uint16_t>(sign | ((exponent + bias) << fraction_bits) |
                               (scaled - (1 << fraction_bits)));
}

}  // namespace

double round_to_format(double value, int significand_bits, int min_exponent, double largest) {
  if (!std::isfinite(value) || value == 0.0) return value;
  const int exponent = std::max(std::ilogb(value), min_exponent);
  const double unit = std::ldexp(1.0, exponent - significand_bits + 1);
  // nearbyint rounds to nearest even in the default mode; value / unit is exact.
  const double rounded = std::nearbyint(value / unit) * unit;
  if (std::fabs(rounded) <= largest) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::kBF16:
      return round_to_format(value, 8, -126, kLargestBf16);
    case DType::kF16:
      return round_to_format(value, 11, -14, kLargestF16);
    case DType::kF32:
      return static_cast<double>(static_cast<float>(value));
    default:
      return value;
  }
}

double load_f64(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kBF16:
      return decode(static_cast<const uint16_t*>(data)[index], 8, 7);
    case DType::kF16:
      return decode(static_cast<const uint16_t*>(data)[index], 5, 10);
    case DType::kF64:
      return static_cast<const double*>(data)[index];
    case DType::kI32:
      return static_cast<const int32_t*>(data)[index];
    case DType::kI64:
      return static_cast<double>(static_cast<const int64_t*>(data)[index]);
    case DType::kU8:
    case DType::kBool:
      return static_cast<const uint8_t*>(data)[index];
  }
  return 0.0;
}

void store_f64(void* data, DType dtype, int64_t index, double value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      return;
    case DType::kBF16:
      static_cast<uint16_t*>(data)[index] = encode(round_to(dtype, value), 8, 7);
      return;
    case DType::kF16:
      static_cast<uint16_t*>(data)[index] = encode(round_to(dtype, value), 5, 10);
      return;
    case DType::kF64:
      static_cast<double*>(data)[index] = value;
      return;
    case DType::kI32:
      static_cast<int32_t*>(data)[index] = static_cast<int32_t>(value);
      return;
    case DType::kI64:
      static_cast<int64_t*>(data)[index] = static_cast<int64_t>(value);
      return;
    case DType::kU8:
    case DType::kBool:
      static_cast<uint8_t*>(data)[index] = static_cast<uint8_t>(value);
      return;
  }
}

}  // namespace linestate::testing
