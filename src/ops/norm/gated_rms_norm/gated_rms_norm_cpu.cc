#include <cmath>

#include "base/device_status.h"
#include "base/element.h"
#include "base/int_math.h"
#include "cpu/parallel_for.h"
#include "ops/norm/gated_rms_norm/gated_rms_norm_kernels.h"
#include "ops/norm/norm_lanes_cpu.h"

namespace linestate {
namespace {

void norm_head(const GatedRmsNormParams& params, int64_t t, int64_t hv) {
  const auto run = [&](const ConstTensorView& tensor) {
    return ConstRun{tensor.data, tensor.dtype, offset_of(tensor, t, hv), tensor.stride[2]};
  };
  const int64_t V = params.x.shape[2];
  const ConstRun x = run(params.x);
  const ConstRun weight{params.weight.data, params.weight.dtype, 0, params.weight.stride[0]};
  const float mean = norm_sum_sq(x, V) / static_cast<float>(V);
  norm_scale(
      x, 1.0f / std::sqrt(mean + params.eps), weight, run(params.z),
      {params.out.data, params.out.dtype, offset_of(params.out, t, hv), params.out.stride[2]}, V);
}

}  // namespace

Status gated_rms_norm_cpu(const GatedRmsNormParams& params, const ExecContext& context) {
  constexpr int64_t kHeadsPerTask = 8;
  const int64_t heads = params.x.shape[1];
  const int64_t parts = ceil_div(heads, kHeadsPerTask);
  if (params.x.num_elements() > 0) {
    parallel_for(threads_for(context, 4 * params.x.num_elements()), params.x.shape[0] * parts,
                 [&](int64_t task, int) {
                   const int64_t begin = task % parts * kHeadsPerTask;
                   const int64_t end = min_i64(begin + kHeadsPerTask, heads);
                   for (int64_t hv = begin; hv < end; ++hv) norm_head(params, task / parts, hv);
                 });
  }
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
