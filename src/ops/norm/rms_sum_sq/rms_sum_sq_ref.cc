#include "base/device_status.h"
#include "base/element.h"
#include "cpu/parallel_for.h"
#include "ops/norm/rms_sum_sq/rms_sum_sq_kernels.h"

namespace linestate {

Status rms_sum_sq_ref(const RmsSumSqParams& params, const ExecContext& context) {
  const ConstTensorView& x = params.x;
  const int64_t groups = params.sum_sq.shape[1];
  const int64_t n = x.shape[1] / groups;
  parallel_for(context, x.shape[0], [&](int64_t t, int) {
    for (int64_t group = 0; group < groups; ++group) {
      double sum = 0.0;
      for (int64_t c = group * n; c < (group + 1) * n; ++c) {
        const double value = load_f32(x.data, x.dtype, offset_of(x, t, c));
        sum += value * value;
      }
      store_f32(params.sum_sq.data, params.sum_sq.dtype, offset_of(params.sum_sq, t, group),
                static_cast<float>(sum));
    }
  });
  raise_if_not_finite(context, params.sum_sq);
  return {};
}

}  // namespace linestate
