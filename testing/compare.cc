#include "testing/compare.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "testing/half.h"
#include "testing/host_tensor.h"

namespace linestate::testing {
namespace {

std::vector<int64_t> offsets(const ConstTensorView& view) {
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(view.num_elements()));
  for_each_offset(view, [&](int64_t offset) { out.push_back(offset); });
  return out;
}

void require_same_shape(const ConstTensorView& a, const ConstTensorView& b) {
  bool same = a.rank == b.rank;
  for (int dim = 0; same && dim < a.rank; ++dim) same = a.shape[dim] == b.shape[dim];
  if (!same) {
    throw std::invalid_argument("compare: " + describe(a) + " against " + describe(b));
  }
}

std::string index_text(const ConstTensorView& view, int64_t flat) {
  std::vector<int64_t> index(static_cast<size_t>(view.rank));
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    index[static_cast<size_t>(dim)] = flat % view.shape[dim];
    flat /= view.shape[dim];
  }
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < index.size(); ++i) text << (i ? ", " : "") << index[i];
  text << ']';
  return text.str();
}

}  // namespace

std::string Difference::text() const {
  std::ostringstream out;
  out << "rel " << rel << ", max_abs " << max_abs << " (ref_max " << ref_max << ", at flat "
      << worst << ")" << (finite ? "" : ", NOT FINITE");
  return out.str();
}

Difference compare(const ConstTensorView& actual, const ConstTensorView& expected) {
  require_same_shape(actual, expected);
  Difference diff;
  double error = 0.0;
  double norm = 0.0;
  const std::vector<int64_t> at_a = offsets(actual);
  const std::vector<int64_t> at_e = offsets(expected);
  for (size_t i = 0; i < at_a.size(); ++i) {
    const double a = load_f64(actual.data, actual.dtype, at_a[i]);
    const double e = load_f64(expected.data, expected.dtype, at_e[i]);
    if (!std::isfinite(a)) diff.finite = false;
    if (std::isinf(a) && a == e) continue;
    const double distance = std::isfinite(a) && std::isfinite(e)
                                ? std::fabs(a - e)
                                : std::numeric_limits<double>::infinity();
    error += distance * distance;
    norm += std::isfinite(e) ? e * e : 0.0;
    diff.ref_max = std::max(diff.ref_max, std::fabs(e));
    if (diff.worst < 0 || distance > diff.max_abs) {
      diff.max_abs = distance;
      diff.worst = static_cast<int64_t>(i);
    }
  }
  if (error > 0.0) {
    diff.rel = norm > 0.0 ? std::sqrt(error / norm) : std::numeric_limits<double>::infinity();
  }
  return diff;
}

double rounding_error(const ConstTensorView& expected, DType dtype) {
  double error = 0.0;
  double norm = 0.0;
  for_each_offset(expected, [&](int64_t offset) {
    const double e = load_f64(expected.data, expected.dtype, offset);
    const double distance = round_to(dtype, e) - e;
    error += distance * distance;
    norm += e * e;
  });
  return norm > 0.0 ? std::sqrt(error / norm) : 0.0;
}

std::string bit_difference(const ConstTensorView& actual, const ConstTensorView& expected) {
  require_same_shape(actual, expected);
  if (actual.dtype != expected.dtype) return "dtypes differ";
  const std::vector<int64_t> at_a = offsets(actual);
  const std::vector<int64_t> at_e = offsets(expected);
  const int64_t size = dtype_bytes(actual.dtype);
  const auto* a = static_cast<const char*>(actual.data);
  const auto* e = static_cast<const char*>(expected.data);
  int64_t count = 0;
  std::string first;
  for (size_t i = 0; i < at_a.size(); ++i) {
    if (std::memcmp(a + at_a[i] * size, e + at_e[i] * size, static_cast<size_t>(size)) == 0) {
      continue;
    }
    if (count++ == 0) {
      std::ostringstream text;
      text.precision(9);
      text << index_text(actual, static_cast<int64_t>(i)) << ": got "
           << load_f64(actual.data, actual.dtype, at_a[i]) << ", expected "
           << load_f64(expected.data, expected.dtype, at_e[i]);
      first = text.str();
    }
  }
  if (count == 0) return {};
  return std::to_string(count) + " elements differ, first " + first;
}

std::string nonzero(const ConstTensorView& tensor) {
  std::string first;
  int64_t flat = 0;
  for_each_offset(tensor, [&](int64_t offset) {
    const double value = load_f64(tensor.data, tensor.dtype, offset);
    if (value != 0.0 && first.empty()) {  // NaN != 0 too
      first = index_text(tensor, flat) + " is " + std::to_string(value);
    }
    ++flat;
  });
  return first;
}

}  // namespace linestate::testing
