#include "cuda/finite_check.h"
#include "ops/norm/group_rms_norm/group_rms_norm_kernels.h"
#include "ops/norm/norm_device.cuh"

namespace linestate {

Status group_rms_norm_cuda(const GroupRmsNormParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  NormDevice p{};
  p.tokens = params.x.shape[0];
  p.groups = params.num_groups;
  p.n = params.x.shape[1] / p.groups;
  p.x = device_view<3>(norm_groups(params.x, p.groups));
  p.gate = device_view<3>(norm_groups(params.gate, p.groups));
  p.out = device_view<3>(norm_groups(params.out, p.groups));
  const DeviceView<1> weight = device_view<1>(params.weight);
  p.weight.data = weight.data;
  p.weight.dtype = weight.dtype;
  p.weight.stride[0] = weight.stride[0] * p.n;
  p.weight.stride[1] = weight.stride[0];
  p.sum_sq = device_view<2>(params.sum_sq);
  p.count = static_cast<float>(params.group_channels == 0 ? p.n : params.group_channels);
  p.eps = params.eps;
  LINESTATE_RETURN_IF_ERROR(run_norm("group_rms_norm", p, context));
  return raise_if_not_finite_cuda(context, params.out);
}

}  // namespace linestate
