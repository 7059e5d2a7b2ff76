// Decode on a GPU: one pass over the state. Where the state lies as engines lay it, in tiles
// (lightning_decode_tile.cuh). Any other layout or size: a block takes one (row, head), each of its
// warps some columns, a few rows of S at a time. The bits are the same, and those of prefill.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/lightning/decode/lightning_decode_kernels.h"
#include "ops/lightning/decode/lightning_decode_tile.cuh"
#include "ops/lightning/lightning_lane_step.cuh"

namespace linestate {
namespace {

constexpr int kWarps = 4;

constexpr int kRows = 8;  // of a lane at a time, 64 of S

__device__ void decode_columns(const LightningDevice& p, int64_t n, int64_t h, const DeviceRow& row,
                               int64_t first, LightningToken& token) {
  const bool works = first < p.D;
  LightningColumns<kRows> S;
  if (works) load_lightning<kRows>(p, row.slot, h, first, row.fresh, S);
  __syncthreads();
  fetch_lightning_token(p, n, h, static_cast<int>(threadIdx.x), 32 * kWarps, token);
  __syncthreads();
  if (!works) return;
  const LightningDecay lambda = lightning_decay(load_at(p.slopes, h), 1);
  float v[4];
  lightning_value(token.v, first, v);
  float o[4] = {};
  for (int begin = 0; begin * kLightningGroups < p.D; begin += kRows) {
    LightningColumns<kRows> next;
    const bool more = (begin + kRows) * kLightningGroups < p.D;
    if (more) load_lightning<kRows>(p, row.slot, h, first, row.fresh, next, begin + kRows);
    update_lightning<kRows>(token.k, v, lambda, S, begin);
    add_lightning_rows<kRows>(token.q, S, o, begin);
    keep_lightning<kRows>(p, n, row.slot, h, first, S, begin);
    for (int64_t m = 0; m < p.snapshots.count; ++m) {
      if (snapshot_after(p.snapshots, p.rows, n, row, 1, m) != 1) continue;
      keep_lightning<kRows>(p, n, p.snapshots.slot.at(m), h, first, S, begin);
    }
    if (more) S = next;
  }
  sum_lightning_rows(o);
  store_lightning_out(p, n, h, first, o);
}

__device__ void empty_columns(const LightningDevice& p, int64_t n, int64_t h, const DeviceRow& row,
                              int64_t first) {
  if (first >= p.D) return;
  clear_lightning_out(p, n, h, first);
  if (!row.live || !row.fresh) return;
  const LightningColumns<kRows> zeros = {};
  for (int begin = 0; begin * kLightningGroups < p.D; begin += kRows) {
    store_lightning<kRows>(p, row.slot, h, first, zeros, begin);
  }
}

/// Task = (row, head, piece of V).
__global__ void __launch_bounds__(32 * kWarps)
    lightning_decode_kernel(const __grid_constant__ LightningDevice p, int64_t pieces,
                            int64_t tasks) {
  __shared__ LightningToken token;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t piece = task % pieces;
    const int64_t h = task / pieces % p.H;
    const int64_t n = task / pieces / p.H;
    const bool reports = piece == 0 && h == 0 && threadIdx.x < 32;
    const DeviceRow row = read_decode_row(p.rows, n, reports ? p.status : nullptr);
    if (reports) report_snapshots(p.snapshots, p.rows, n, row, row.valid, p.status);
    const int64_t first = (piece * kWarps + threadIdx.x / 32) * kLightningColumns;
    if (row.valid > 0) {
      decode_columns(p, n, h, row, first, token);
    } else {
      empty_columns(p, n, h, row, first);
    }
  }
}

Status run_lightning_decode_columns(const LightningDevice& p, int64_t N,
                                    const ExecContext& context) {
  const int64_t pieces = ceil_div(p.D, kWarps * kLightningColumns);
  const int64_t tasks = N * p.H * pieces;
  return launch("lightning_decode", lightning_decode_kernel, grid_of(tasks), 32 * kWarps, context,
                p, pieces, tasks);
}

}  // namespace

Status lightning_decode_cuda(const LightningParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const LightningDevice p = lightning_device(params, context);
  const int64_t N = params.q.shape[0];
  LINESTATE_RETURN_IF_ERROR(lightning_tiles_fit(params)
                                ? run_lightning_decode_tiles(p, N, context)
                                : run_lightning_decode_columns(p, N, context));
  return raise_if_not_finite_cuda(context, params.out);
}

}  // namespace linestate
