#include <cmath>

#include "base/device_status.h"
#include "base/element.h"
#include "cpu/parallel_for.h"
#include "ops/norm/gated_rms_norm/gated_rms_norm_kernels.h"

namespace linestate {
namespace {

double element(const ConstTensorView& tensor, int64_t offset) {
  return load_f32(tensor.data, tensor.dtype, offset);
}

// out = x * rsqrt(mean(x^2) + eps) * w * sigmoid(z)
void norm_head(const GatedRmsNormParams& params, int64_t t, int64_t hv) {
  const int64_t V = params.x.shape[2];
  double sum = 0.0;
  for (int64_t v = 0; v < V; ++v) {
    const double x = element(params.x, offset_of(params.x, t, hv, v));
    sum += x * x;
  }
  const double rms = std::sqrt(sum / static_cast<double>(V) + params.eps);
  for (int64_t v = 0; v < V; ++v) {
    const double x = element(params.x, offset_of(params.x, t, hv, v));
    const double w = element(params.weight, offset_of(params.weight, v));
    const double z = element(params.z, offset_of(params.z, t, hv, v));
    const double out = x / rms * w / (1.0 + std::exp(-z));
    store_f32(params.out.data, params.out.dtype, offset_of(params.out, t, hv, v),
              static_cast<float>(out));
  }
}

}  // namespace

Status gated_rms_norm_ref(const GatedRmsNormParams& params, const ExecContext& context) {
  parallel_for(context, params.x.shape[0], [&](int64_t t, int) {
    for (int64_t hv = 0; hv < params.x.shape[1]; ++hv) norm_head(params, t, hv);
  });
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
