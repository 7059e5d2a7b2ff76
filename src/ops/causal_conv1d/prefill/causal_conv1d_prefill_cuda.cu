// Any number of tokens a row on a GPU. The first kernel cuts the packed tokens into tiles, whoever
// they belong to, so that long rows and many short ones fill the device alike; it only reads the
// windows. The second moves them.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/causal_conv1d/conv_device.cuh"
#include "ops/causal_conv1d/prefill/causal_conv1d_prefill_kernels.h"
#include "ops/common/conv_window_device.cuh"

namespace linestate {
namespace {

constexpr int kThreads = 128;
constexpr int kTileTokens = 16;

/// The row that token t belongs to; N for the tail behind all rows. Offsets that break their
/// contract give some row, which read_prefill_row then refuses.
__device__ int64_t row_of_token(const DeviceRows& rows, int64_t t) {
  int64_t low = 0;  // query_start_loc[low] <= t, as far as the offsets are in order
  int64_t high = rows.count + 1;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (rows.query_start_loc.at(middle) <= t ? low : high) = middle;
  }
  return low;
}

/// Input i of the row, counted from its first token of this call; negative ones are in the window.
__device__ void load_conv_tap(const ConvDevice& p, const DeviceRow& row, int64_t i, ConvChannels c,
                              float* out) {
  if (i >= 0) {
    load_conv_input(p, row.token_begin + i, c, out);
  } else {
    load_conv_past(p, row, p.width - 1 + i, c, out);
  }
}

/// Tokens [t, end) of one row.
template <int W>
__device__ void convolve_tokens(const ConvDevice& p, const ConvTaps<W>& taps, const DeviceRow& row,
                                int64_t t, int64_t end, ConvChannels c) {
  const int64_t valid_end = row.token_begin + row.valid;
  float in[W][kConvQuad];
  if (t < valid_end) {
#pragma unroll
    for (int j = 0; j + 1 < W; ++j) {
      load_conv_tap(p, row, t - row.token_begin - (W - 1) + j, c, in[j]);
    }
  }
  for (; t < end; ++t) {
    if (t >= valid_end) {
      clear_conv_token(p, t, c);
      continue;
    }
    load_conv_input(p, t, c, in[W - 1]);
    store_conv_token<W>(p, taps, t, c, in);
#pragma unroll
    for (int j = 0; j + 1 < W; ++j) {
#pragma unroll
      for (int e = 0; e < kConvQuad; ++e) in[j][e] = in[j + 1][e];
    }
  }
}

template <int W>
__global__ void __launch_bounds__(kThreads)
    conv_prefill_kernel(const __grid_constant__ ConvDevice p, int64_t blocks, int64_t tasks) {
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t quad = task % blocks * kThreads + threadIdx.x;
    if (quad * kConvQuad >= p.channels) continue;
    const ConvChannels c = conv_channels(p, quad);
    const ConvTaps<W> taps = load_conv_taps<W>(p, c);
    int64_t t = task / blocks * kTileTokens;
    const int64_t tile_end = min(t + kTileTokens, p.rows.capacity);
    for (int64_t n = row_of_token(p.rows, t); t < tile_end && n <= p.rows.count; ++n) {
      const DeviceRow row = read_prefill_row(p.rows, n, nullptr);
      const int64_t end = min(tile_end, row.token_begin + row.tokens);
      if (row.token_begin > t || end <= t) continue;
      convolve_tokens<W>(p, taps, row, t, end, c);
      t = end;
    }
    for (; t < tile_end; ++t) clear_conv_token(p, t, c);
  }
}

__global__ void __launch_bounds__(kThreads)
    conv_window_kernel(const __grid_constant__ WindowDevice p, DeviceStatus* status, int64_t blocks,
                       int64_t tasks) {
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t n = task / blocks;
    const int64_t c = task % blocks * kThreads + threadIdx.x;
    const bool reports = task % blocks == 0 && threadIdx.x < 32;
    const DeviceRow row = read_prefill_row(p.rows, n, reports ? status : nullptr);
    if (reports) report_snapshots(p.snapshots, p.rows, n, row, row.valid, status);
    if (c >= p.channels) continue;
    move_window(p, n, row, c, row.valid, [&](int64_t i) { return row.token_begin + i; });
  }
}

}  // namespace

Status causal_conv1d_prefill_cuda(const CausalConv1dParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const ConvDevice p = conv_device(params, context);
  const int64_t blocks = ceil_div(p.channels, kThreads * kConvQuad);
  const int64_t tasks = ceil_div(p.rows.capacity, kTileTokens) * blocks;
  const Status status = with_conv_width(p.width, [&]<int W>() {
    return launch("causal_conv1d_prefill", conv_prefill_kernel<W>, grid_of(tasks), kThreads,
                  context, p, blocks, tasks);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  const WindowDevice windows{p.rows, p.snapshots, p.window, p.x, p.channels, p.width - 1};
  const int64_t window_blocks = ceil_div(p.channels, kThreads);
  const int64_t window_tasks = p.rows.count * window_blocks;
  LINESTATE_RETURN_IF_ERROR(launch("causal_conv1d_window", conv_window_kernel,
                                   grid_of(window_tasks), kThreads, context, windows,
                                   context.status, window_blocks, window_tasks));
  return raise_if_not_finite_cuda(context, params.out);
}

}  // namespace linestate
