// One token a row on a GPU: a thread makes the outputs of four channels from the window and the
// input, then moves their windows.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/causal_conv1d/conv_device.cuh"
#include "ops/causal_conv1d/update/causal_conv1d_update_kernels.h"
#include "ops/common/conv_window_device.cuh"

namespace linestate {
namespace {

constexpr int kThreads = 128;

template <int W>
__device__ void update_quad(const ConvDevice& p, const WindowDevice& windows, int64_t n,
                            const DeviceRow& row, ConvChannels c) {
  if (row.valid > 0) {
    float in[W][kConvQuad];
#pragma unroll
    for (int j = 0; j + 1 < W; ++j) load_conv_past(p, row, j, c, in[j]);
    load_conv_input(p, n, c, in[W - 1]);
    store_conv_token<W>(p, load_conv_taps<W>(p, c), n, c, in);
  } else {
    clear_conv_token(p, n, c);
  }
  for (int e = 0; e < c.count; ++e) {
    move_window(windows, n, row, c.first + e, row.valid, [&](int64_t) { return n; });
  }
}

template <int W>
__global__ void __launch_bounds__(kThreads)
    conv_update_kernel(const __grid_constant__ ConvDevice p,
                       const __grid_constant__ WindowDevice windows, int64_t blocks,
                       int64_t tasks) {
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t n = task / blocks;
    const int64_t quad = task % blocks * kThreads + threadIdx.x;
    const bool reports = task % blocks == 0 && threadIdx.x < 32;
    const DeviceRow row = read_decode_row(p.rows, n, reports ? p.status : nullptr);
    if (reports) report_snapshots(p.snapshots, p.rows, n, row, row.valid, p.status);
    if (quad * kConvQuad < p.channels) {
      update_quad<W>(p, windows, n, row, conv_channels(p, quad));
    }
  }
}

}  // namespace

Status causal_conv1d_update_cuda(const CausalConv1dParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const ConvDevice p = conv_device(params, context);
  const WindowDevice windows{p.rows, p.snapshots, p.window, p.x, p.channels, p.width - 1};
  const int64_t blocks = ceil_div(p.channels, kThreads * kConvQuad);
  const int64_t tasks = p.rows.count * blocks;
  const Status status = with_conv_width(p.width, [&]<int W>() {
    return launch("causal_conv1d_update", conv_update_kernel<W>, grid_of(tasks), kThreads, context,
                  p, windows, blocks, tasks);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.out);
}

}  // namespace linestate
