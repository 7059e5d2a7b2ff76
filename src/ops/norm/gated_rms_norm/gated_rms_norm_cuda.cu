#include "cuda/finite_check.h"
#include "ops/norm/gated_rms_norm/gated_rms_norm_kernels.h"
#include "ops/norm/norm_device.cuh"

namespace linestate {

Status gated_rms_norm_cuda(const GatedRmsNormParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  NormDevice p{};
  p.x = device_view<3>(params.x);
  p.gate = device_view<3>(params.z);
  p.out = device_view<3>(params.out);
  const DeviceView<1> weight = device_view<1>(params.weight);
  p.weight.data = weight.data;
  p.weight.dtype = weight.dtype;
  p.weight.stride[1] = weight.stride[0];  // every head has the same
  p.tokens = params.x.shape[0];
  p.groups = params.x.shape[1];
  p.n = params.x.shape[2];
  p.count = static_cast<float>(p.n);
  p.eps = params.eps;
  LINESTATE_RETURN_IF_ERROR(run_norm("gated_rms_norm", p, context));
  return raise_if_not_finite_cuda(context, params.out);
}

}  // namespace linestate
