#include "cli/replay/error_sums.h"

#include <cmath>
#include <limits>

#include "cli/replay/half_floats.h"

namespace linestate::cli {

HeadSums ErrorSums::total() const {
  HeadSums sum;
  for (const HeadSums& head : heads) {
    sum.error += head.error;
    sum.norm += head.norm;
    sum.rounding += head.rounding;
  }
  return sum;
}

int64_t ErrorSums::worst_head() const {
  int64_t worst = 0;
  for (size_t h = 0; h < heads.size(); ++h) {
    if (std::isnan(heads[h].error)) return static_cast<int64_t>(h);
    if (heads[h].error > heads[static_cast<size_t>(worst)].error) worst = static_cast<int64_t>(h);
  }
  return worst;
}

double relative_rms(double part, double whole) {
  if (part == 0.0) return 0.0;
  if (whole == 0.0) return std::numeric_limits<double>::infinity();
  return std::sqrt(part / whole);
}

void add_output_errors(const ConstTensorView& actual, const ConstTensorView& reference,
                       ErrorSums& sums) {
  const int64_t tokens = actual.shape[0];
  const auto heads = static_cast<int64_t>(sums.heads.size());
  const int64_t dim = actual.shape[2];
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t head = 0; head < heads; ++head) {
      HeadSums part;
      for (int64_t i = (t * heads + head) * dim; i < (t * heads + head + 1) * dim; ++i) {
        const float expected = widen(reference.data, reference.dtype, i);
        const double difference =
            static_cast<double>(widen(actual.data, actual.dtype, i)) - expected;
        const double rounding = static_cast<double>(rounded(expected, actual.dtype)) - expected;
        part.error += difference * difference;
        part.norm += static_cast<double>(expected) * expected;
        part.rounding += rounding * rounding;
      }
      HeadSums& sum = sums.heads[static_cast<size_t>(head)];
      sum.error += part.error;
      sum.norm += part.norm;
      sum.rounding += part.rounding;
    }
  }
}

void add_state_errors(const ConstTensorView& actual, const ConstTensorView& reference,
                      ErrorSums& sums) {
  const int64_t per_head = actual.shape[1] * actual.shape[2];
  for (size_t head = 0; head < sums.heads.size(); ++head) {
    HeadSums& sum = sums.heads[head];
    const int64_t begin = static_cast<int64_t>(head) * per_head;
    for (int64_t i = begin; i < begin + per_head; ++i) {
      const double expected = widen(reference.data, reference.dtype, i);
      const double difference = widen(actual.data, actual.dtype, i) - expected;
      sum.error += difference * difference;
      sum.norm += expected * expected;
    }
  }
}

}  // namespace linestate::cli
