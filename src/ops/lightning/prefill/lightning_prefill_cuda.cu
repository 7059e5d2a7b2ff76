// Prefill on a GPU, portable: the recurrence token by token, with the state in registers. A block
// takes some columns of S of one (row, head); tokens come through shared memory, a tile at a time.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/lightning/lightning_lane_step.cuh"
#include "ops/lightning/prefill/lightning_prefill_kernels.h"

namespace linestate {
namespace {

constexpr int kWarps = 4;
constexpr int kTokens = 8;  // of a tile

struct Work {
  int64_t n, h, first;
  bool works;  // the warp's columns exist
};

template <int kRows>
__device__ int64_t take_snapshots(const LightningDevice& p, const Work& work, const DeviceRow& row,
                                  int64_t done, const LightningColumns<kRows>& S) {
  for (int64_t m = 0; m < p.snapshots.count; ++m) {
    if (snapshot_after(p.snapshots, p.rows, work.n, row, row.valid, m) != done) continue;
    keep_lightning<kRows>(p, work.n, p.snapshots.slot.at(m), work.h, work.first, S);
  }
  return next_snapshot(p.snapshots, p.rows, work.n, row, row.valid, done);
}

__device__ void fill_tile(const LightningDevice& p, int64_t t, int count, int64_t h,
                          LightningToken (&tile)[kTokens]) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  __syncthreads();
  for (int i = warp; i < count; i += kWarps) {
    fetch_lightning_token(p, t + i, h, lane_id(), 32, tile[i]);
  }
  __syncthreads();
}

/// The most tokens of row n that an entry waits for, 0 when none does; for a whole warp.
__device__ int64_t last_snapshot(const LightningDevice& p, int64_t n, const DeviceRow& row) {
  int64_t last = 0;
  for (int64_t m = lane_id(); m < p.snapshots.count; m += 32) {
    const int64_t tokens = snapshot_after(p.snapshots, p.rows, n, row, row.valid, m);
    if (tokens != kNoSnapshot) last = max(last, tokens);
  }
  return -min_lanes(-last);
}

template <int kRows, bool kOnlySnapshots>
__device__ void run_tokens(const LightningDevice& p, const Work& work, const DeviceRow& row,
                           LightningToken (&tile)[kTokens]) {
  LightningColumns<kRows> S;
  if (work.works) load_lightning<kRows>(p, row.slot, work.h, work.first, row.fresh, S);
  const LightningDecay lambda = lightning_decay(load_at(p.slopes, work.h), 1);
  int64_t next = next_snapshot(p.snapshots, p.rows, work.n, row, row.valid, 0);
  const int64_t end = kOnlySnapshots ? last_snapshot(p, work.n, row) : row.valid;
  for (int64_t done = 0; done < end; done += kTokens) {
    const int count = static_cast<int>(min(end - done, int64_t{kTokens}));
    fill_tile(p, row.token_begin + done, count, work.h, tile);
    for (int i = 0; work.works && i < count; ++i) {
      float o[4];
      step_lightning<kRows>(tile[i], work.first, lambda, S, o);
      if constexpr (!kOnlySnapshots) {
        store_lightning_out(p, row.token_begin + done + i, work.h, work.first, o);
      }
      if (next == done + i + 1) next = take_snapshots<kRows>(p, work, row, next, S);
    }
  }
  if constexpr (!kOnlySnapshots) {
    if (work.works) keep_lightning<kRows>(p, work.n, row.slot, work.h, work.first, S);
  }
}

/// Task = (row, head, piece of V); row N is the tail behind all rows. With kOnlySnapshots neither
/// outputs nor final states are written, and what is in them is said by somebody else.
template <int kRows, bool kOnlySnapshots>
__global__ void __launch_bounds__(32 * kWarps)
    lightning_prefill_kernel(const __grid_constant__ LightningDevice p, int64_t pieces,
                             int64_t tasks) {
  __shared__ LightningToken tile[kTokens];
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t piece = task % pieces;
    const int64_t first = (piece * kWarps + threadIdx.x / 32) * kLightningColumns;
    const Work work{task / pieces / p.H, task / pieces % p.H, first, first < p.D};
    const bool reports = piece == 0 && work.h == 0 && threadIdx.x < 32;
    const DeviceRow row =
        read_prefill_row(p.rows, work.n, reports && !kOnlySnapshots ? p.status : nullptr);
    if (reports) report_snapshots(p.snapshots, p.rows, work.n, row, row.valid, p.status);
    if (row.valid > 0) run_tokens<kRows, kOnlySnapshots>(p, work, row, tile);
    if constexpr (!kOnlySnapshots) {
      for (int64_t i = row.valid; work.works && i < row.tokens; ++i) {
        clear_lightning_out(p, row.token_begin + i, work.h, first);
      }
      if (work.works && row.valid == 0 && row.live && row.fresh) {
        clear_lightning<kRows>(p, row.slot, work.h, first);
      }
    }
  }
}

template <bool kOnlySnapshots>
Status run(const LightningDevice& p, const ExecContext& context) {
  const int64_t pieces = ceil_div(p.D, kWarps * kLightningColumns);
  const int64_t tasks = (p.rows.count + 1) * p.H * pieces;
  return with_lightning_rows(p.D, [&]<int kRows>() {
    return launch("lightning_prefill", lightning_prefill_kernel<kRows, kOnlySnapshots>,
                  grid_of(tasks), 32 * kWarps, context, p, pieces, tasks);
  });
}

}  // namespace

Status lightning_prefill_cuda(const LightningParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  LINESTATE_RETURN_IF_ERROR(run<false>(lightning_device(params, context), context));
  return raise_if_not_finite_cuda(context, params.out);
}

Status lightning_prefill_snapshots_cuda(const LightningParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  return run<true>(lightning_device(params, context), context);
}

}  // namespace linestate
