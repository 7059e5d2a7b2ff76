#include "testing/fill.h"

#include <cmath>
#include <limits>

#include "testing/half.h"
#include "testing/host_tensor.h"

namespace linestate::testing {

double Random::normal() {
  constexpr double kTwoPi = 6.283185307179586;
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(kTwoPi * uniform());
}

namespace {

template <typename Draw>
void fill(const TensorView& tensor, Draw&& draw) {
  for_each_offset(tensor,
                  [&](int64_t offset) { store_f64(tensor.data, tensor.dtype, offset, draw()); });
}

}  // namespace

void fill_normal(const TensorView& tensor, uint64_t seed, double scale, double mean) {
  Random random(seed);
  fill(tensor, [&] { return mean + scale * random.normal(); });
}

void fill_uniform(const TensorView& tensor, uint64_t seed, double low, double high) {
  Random random(seed);
  fill(tensor, [&] { return random.uniform(low, high); });
}

void fill_constant(const TensorView& tensor, double value) {
  fill(tensor, [&] { return value; });
}

void fill_nan(const TensorView& tensor) {
  fill_constant(tensor, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace linestate::testing
