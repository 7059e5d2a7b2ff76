#include "cuda/finite_check.h"
#include "ops/norm/norm_device.cuh"
#include "ops/norm/rms_sum_sq/rms_sum_sq_kernels.h"

namespace linestate {

Status rms_sum_sq_cuda(const RmsSumSqParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  NormDevice p{};
  p.tokens = params.x.shape[0];
  p.groups = params.sum_sq.shape[1];
  p.n = params.x.shape[1] / p.groups;
  p.x = device_view<3>(norm_groups(params.x, p.groups));
  p.sum_sq = device_view<2>(params.sum_sq);
  LINESTATE_RETURN_IF_ERROR(run_norm("rms_sum_sq", p, context));
  return raise_if_not_finite_cuda(context, params.sum_sq);
}

}  // namespace linestate
