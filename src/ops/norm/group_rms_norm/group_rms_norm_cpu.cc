#include <cmath>

#include "base/device_status.h"
#include "base/element.h"
#include "cpu/parallel_for.h"
#include "ops/norm/group_rms_norm/group_rms_norm_kernels.h"
#include "ops/norm/norm_lanes_cpu.h"

namespace linestate {
namespace {

void norm_group(const GroupRmsNormParams& params, int64_t t, int64_t group) {
  const int64_t n = params.x.shape[1] / params.num_groups;
  const int64_t first = group * n;
  const auto run = [&](const ConstTensorView& tensor) {
    if (!tensor.defined()) return ConstRun{};
    return ConstRun{tensor.data, tensor.dtype, offset_of(tensor, t, first), tensor.stride[1]};
  };
  const ConstRun x = run(params.x);
  const ConstRun weight{params.weight.data, params.weight.dtype, offset_of(params.weight, first),
                        params.weight.stride[0]};
  const float sum = params.sum_sq.defined() ? load_f32(params.sum_sq.data, params.sum_sq.dtype,
                                                       offset_of(params.sum_sq, t, group))
                                            : norm_sum_sq(x, n);
  const int64_t whole = params.group_channels == 0 ? n : params.group_channels;
  const float mean = sum / static_cast<float>(whole);
  norm_scale(
      x, 1.0f / std::sqrt(mean + params.eps), weight, run(params.gate),
      {params.out.data, params.out.dtype, offset_of(params.out, t, first), params.out.stride[1]},
      n);
}

}  // namespace

Status group_rms_norm_cpu(const GroupRmsNormParams& params, const ExecContext& context) {
  const int64_t groups = params.num_groups;
  if (params.x.num_elements() > 0) {
    parallel_for(threads_for(context, 4 * params.x.num_elements()), params.x.shape[0],
                 [&](int64_t t, int) {
                   for (int64_t group = 0; group < groups; ++group) norm_group(params, t, group);
                 });
  }
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
