// Any number of tokens a row on a GPU. Blocks cut the packed tokens into tiles, whoever they belong
// to, so that long rows and many short ones fill the device alike. The thread that has a row's
// first token is the only one that reads the row's window, so it moves it too; rows without tokens
// have blocks of their own. Width 4 with aligned 16-byte runs takes the wide kernel.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/causal_conv1d/conv_device.cuh"
#include "ops/causal_conv1d/conv_wide_device.cuh"
#include "ops/causal_conv1d/prefill/causal_conv1d_prefill_kernels.h"
#include "ops/common/conv_window_device.cuh"

namespace linestate {
namespace {

constexpr int kThreads = 128;
constexpr int kTileTokens = 16;
constexpr int kWideThreads = 128;

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

/// Zeros for tokens [t, end).
template <DType kType>
__device__ void clear_wide(const ConvDevice& p, const WideLane& lane, int64_t t, int64_t end) {
  for (; t < end; ++t) {
    *wide_at<kType>(p.out.data, p.out.offset(t, lane.c)) = {};
  }
}

/// A tile of packed tokens. The first three of a row go with its first one, though they lie in the
/// next tile, so that nobody else needs the row's window.
template <DType kType>
__device__ void convolve_tile(const ConvDevice& p, const WideLane& lane, int64_t tile,
                              WideDoubts& doubts) {
  int64_t t = tile * kWideTile;
  const int64_t tile_end = min(t + kWideTile, p.rows.capacity);
  for (int64_t n = row_of_token(p.rows, t); t < tile_end && n <= p.rows.count; ++n) {
    const DeviceRow row = read_prefill_row(p.rows, n, nullptr);
    const int64_t row_end = row.token_begin + row.tokens;
    const int64_t headed = min(row.token_begin + kWideTail, row_end);
    if (row.token_begin < t) t = max(t, headed);
    const int64_t end = min(row_end, max(tile_end, headed));
    if (row.token_begin > t || end <= t) continue;
    const bool begins = row.token_begin == t;
    const int64_t valid_end = min(end, row.token_begin + row.valid);
    if (t < valid_end) {
      convolve_wide<kType>(p, lane, row, t, valid_end, doubts);
      t = valid_end;
    }
    clear_wide<kType>(p, lane, t, end);
    if (begins) move_wide_window<kType>(p, lane, n, row);
    t = end;
  }
  clear_wide<kType>(p, lane, t, tile_end);
}

/// Row n as a whole: reports it, and moves its window where it has no token.
template <DType kType>
__device__ void finish_wide_row(const ConvDevice& p, WideLane lane, int64_t n) {
  DeviceStatus* status = threadIdx.x < 32 ? p.status : nullptr;
  const DeviceRow row = read_prefill_row(p.rows, n, status);
  if (status != nullptr) report_snapshots(p.snapshots, p.rows, n, row, row.valid, status);
  if (row.tokens > 0) return;
  constexpr int64_t kStep = kWideThreads * kConvQuad;
  for (lane.c = threadIdx.x * kConvQuad; lane.c < p.channels; lane.c += kStep) {
    move_wide_window<kType>(p, lane, n, row);
  }
}

/// Task = (tile, block of channels), then the rows.
template <DType kType>
__global__ void __launch_bounds__(kWideThreads, 4)
    conv_prefill_wide_kernel(const __grid_constant__ ConvDevice p, bool wide_window, int64_t blocks,
                             int64_t tiles, int64_t tasks) {
  __shared__ WideDoubts doubts[kWideThreads / 32];
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    if (task >= tiles * blocks) {
      finish_wide_row<kType>(p, {0, 0, true, wide_window}, task - tiles * blocks);
      continue;
    }
    const int64_t first = (task % blocks * kWideThreads + warp * 32) * kConvQuad;
    if (first >= p.channels) continue;
    const int64_t c = first + lane_id() * kConvQuad;
    const WideLane lane{first, min(c, p.channels - kConvQuad), c < p.channels, wide_window};
    convolve_tile<kType>(p, lane, task / blocks, doubts[warp]);
  }
}

template <DType kType>
Status run_wide(const ConvDevice& p, bool wide_window, const ExecContext& context) {
  const int64_t blocks = ceil_div(p.channels, kWideThreads * kConvQuad);
  const int64_t tiles = ceil_div(p.rows.capacity, kWideTile);
  const int64_t tasks = tiles * blocks + p.rows.count;
  return launch("causal_conv1d_prefill", conv_prefill_wide_kernel<kType>, grid_of(tasks),
                kWideThreads, context, p, wide_window, blocks, tiles, tasks);
}

Status run_any(const ConvDevice& p, const ExecContext& context) {
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
  return launch("causal_conv1d_window", conv_window_kernel, grid_of(window_tasks), kThreads,
                context, windows, context.status, window_blocks, window_tasks);
}

}  // namespace

Status causal_conv1d_prefill_cuda(const CausalConv1dParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const ConvDevice p = conv_device(params, context);
  const bool wide_window = window_is_wide(params);
  const DType dtype = params.x.dtype;
  const Status status = !conv_is_wide(p)       ? run_any(p, context)
                        : dtype == DType::kF32 ? run_wide<DType::kF32>(p, wide_window, context)
                        : dtype == DType::kF16 ? run_wide<DType::kF16>(p, wide_window, context)
                                               : run_wide<DType::kBF16>(p, wide_window, context);
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.out);
}

}  // namespace linestate
