// One token a row on a GPU: a thread makes the outputs of four channels from the window and the
// input, then moves their windows. Width 4 with aligned runs of channels takes the wide kernel.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/causal_conv1d/conv_device.cuh"
#include "ops/causal_conv1d/conv_wide_device.cuh"
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

template <DType kType>
__device__ void update_wide(const ConvDevice& p, const WideLane& lane, int64_t n,
                            const DeviceRow& row) {
  auto* out = wide_at<kType>(p.out.data, p.out.offset(n, lane.c));
  if (row.valid == 0) {
    *out = {};
    move_wide_window<kType>(p, lane, n, row);
    return;
  }
  float x[kWideWidth][4];
#pragma unroll
  for (int j = 0; j < kWideWidth; ++j) {
    load_wide_input<kType>(p, lane, row, j - kWideTail, x[j]);
  }
  WideTaps taps;
  load_wide_taps(p, lane.c, taps);
  float sum[4];
  float reach[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    sum[e] = taps.bias[e];
    reach[e] = taps.least;
#pragma unroll
    for (int j = 0; j < kWideWidth; ++j) {
      sum[e] = fmaf(taps.w[j][e], x[j][e], sum[e]);
      reach[e] = fmaxf(reach[e], fabsf(x[j][e]));
    }
  }
  if constexpr (kType == DType::kF32) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] = conv_activation(p.silu, sum[e]);
    *out = make_uint4(__float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]),
                      __float_as_uint(sum[3]));
  } else {
    const uint2 doubt = store_wide_16<kType>(taps, p.silu, sum, reach, out);
    const uint32_t doubts = doubt.x | doubt.y << 2;
#pragma unroll 1
    for (int e = 0; e < 4; ++e) {
      if ((doubts >> (e / 2 * 2 + e % 2 * 16) & 1u) != 0) redo_conv_output(p, row, n, lane.c + e);
    }
  }
  move_wide_window<kType>(p, lane, n, row);
}

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    conv_update_wide_kernel(const __grid_constant__ ConvDevice p, bool wide_window, int64_t blocks,
                            int64_t tasks) {
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t n = task / blocks;
    const int64_t c = (task % blocks * kThreads + threadIdx.x) * kConvQuad;
    const bool reports = task % blocks == 0 && threadIdx.x < 32;
    const DeviceRow row = read_decode_row(p.rows, n, reports ? p.status : nullptr);
    if (reports) report_snapshots(p.snapshots, p.rows, n, row, row.valid, p.status);
    if (c < p.channels) update_wide<kType>(p, {c, c, true, wide_window}, n, row);
  }
}

Status run_wide(const CausalConv1dParams& params, const ConvDevice& p, int64_t blocks,
                int64_t tasks, const ExecContext& context) {
  const auto kernel = params.x.dtype == DType::kF32   ? conv_update_wide_kernel<DType::kF32>
                      : params.x.dtype == DType::kF16 ? conv_update_wide_kernel<DType::kF16>
                                                      : conv_update_wide_kernel<DType::kBF16>;
  return launch("causal_conv1d_update", kernel, grid_of(tasks), kThreads, context, p,
                window_is_wide(params), blocks, tasks);
}

}  // namespace

Status causal_conv1d_update_cuda(const CausalConv1dParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const ConvDevice p = conv_device(params, context);
  const WindowDevice windows{p.rows, p.snapshots, p.window, p.x, p.channels, p.width - 1};
  const int64_t blocks = ceil_div(p.channels, kThreads * kConvQuad);
  const int64_t tasks = p.rows.count * blocks;
  const auto run_any = [&] {
    return with_conv_width(p.width, [&]<int W>() {
      return launch("causal_conv1d_update", conv_update_kernel<W>, grid_of(tasks), kThreads,
                    context, p, windows, blocks, tasks);
    });
  };
  LINESTATE_RETURN_IF_ERROR(conv_is_wide(p) ? run_wide(params, p, blocks, tasks, context)
                                            : run_any());
  return raise_if_not_finite_cuda(context, params.out);
}

}  // namespace linestate
