#include "cuda/device_flags.cuh"
#include "cuda/device_view.cuh"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"

namespace linestate {
namespace {

constexpr int kThreads = 128;

struct Outputs {
  DeviceView<3> view;
  int64_t tokens;
  int64_t rows;     // second dimension, 1 when there is none
  int64_t columns;  // last dimension
};

__global__ void finite_check_kernel(Outputs out, DeviceStatus* status) {
  for (int64_t t = blockIdx.x; t < out.tokens; t += gridDim.x) {
    bool finite = true;
    for (int64_t i = threadIdx.x; i < out.rows * out.columns; i += kThreads) {
      finite &= isfinite(load_at(out.view, t, i / out.columns, i % out.columns)) != 0;
    }
    if (!finite) raise_flag(status, DeviceFlag::kNonFinite, t);
  }
}

}  // namespace

Status raise_if_not_finite_cuda(const ExecContext& context, const ConstTensorView& out) {
  if (!context.check_finite || context.status == nullptr) return {};
  ConstTensorView cube = out;
  if (out.rank == 2) {
    cube.rank = 3;
    cube.shape = {out.shape[0], 1, out.shape[1]};
    cube.stride = {out.stride[0], 0, out.stride[1]};
  }
  const Outputs outputs{device_view<3>(cube), cube.shape[0], cube.shape[1], cube.shape[2]};
  return launch("finite_check", finite_check_kernel, grid_of(outputs.tokens), kThreads, context,
                outputs, context.status);
}

}  // namespace linestate
