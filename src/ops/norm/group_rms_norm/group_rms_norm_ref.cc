#include <cmath>

#include "base/device_status.h"
#include "base/element.h"
#include "cpu/parallel_for.h"
#include "ops/norm/group_rms_norm/group_rms_norm_kernels.h"

namespace linestate {
namespace {

double element(const ConstTensorView& tensor, int64_t offset) {
  return load_f32(tensor.data, tensor.dtype, offset);
}

double group_sum_sq(const GroupRmsNormParams& params, int64_t t, int64_t group, int64_t n) {
  if (params.sum_sq.defined()) return element(params.sum_sq, offset_of(params.sum_sq, t, group));
  double sum = 0.0;
  for (int64_t c = group * n; c < (group + 1) * n; ++c) {
    const double x = element(params.x, offset_of(params.x, t, c));
    sum += x * x;
  }
  return sum;
}

// out = x * rsqrt(sum / group_channels + eps) * w, then * sigmoid(gate)
void norm_group(const GroupRmsNormParams& params, int64_t t, int64_t group) {
  const int64_t n = params.x.shape[1] / params.num_groups;
  const int64_t whole = params.group_channels == 0 ? n : params.group_channels;
  const double mean = group_sum_sq(params, t, group, n) / static_cast<double>(whole);
  const double rms = std::sqrt(mean + params.eps);
  for (int64_t c = group * n; c < (group + 1) * n; ++c) {
    double out = element(params.x, offset_of(params.x, t, c)) / rms *
                 element(params.weight, offset_of(params.weight, c));
    if (params.gate.defined()) {
      out /= 1.0 + std::exp(-element(params.gate, offset_of(params.gate, t, c)));
    }
    store_f32(params.out.data, params.out.dtype, offset_of(params.out, t, c),
              static_cast<float>(out));
  }
}

}  // namespace

Status group_rms_norm_ref(const GroupRmsNormParams& params, const ExecContext& context) {
  parallel_for(context, params.x.shape[0], [&](int64_t t, int) {
    for (int64_t group = 0; group < params.num_groups; ++group) norm_group(params, t, group);
  });
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
