// Commit on a GPU: the keys and values of the accepted path on columns of the state in registers,
// in the arithmetic of decode.
#include "base/int_math.h"
#include "cuda/launch.cuh"
#include "ops/draft_tree/draft_tree_device.cuh"
#include "ops/lightning/commit/lightning_commit_kernels.h"
#include "ops/lightning/lightning_lane_step.cuh"

namespace linestate {
namespace {

constexpr int kWarps = 4;

struct Commit {
  LightningDevice lightning;  // k and v are the record's; no q, no out
  DeviceAccepted nodes;
  DeviceTaken taken;
};

struct Work {
  int64_t n, h, first;
  bool works;
};

__device__ void fetch_node(const LightningDevice& p, int64_t t, int64_t h, LightningToken& token) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  fetch_lightning(p.k, p.k.offset(t, h), p.D, 1.0f, thread, 32 * kWarps, token.k);
  fetch_lightning(p.v, p.v.offset(t, h), p.D, 1.0f, thread, 32 * kWarps, token.v);
  __syncthreads();
}

template <int kRows>
__device__ void commit_columns(const LightningDevice& p, const Work& work, const DeviceRow& row,
                               const DevicePath& path, LightningToken& token) {
  LightningColumns<kRows> S;
  if (work.works) load_lightning<kRows>(p, row.slot, work.h, work.first, row.fresh, S);
  const LightningDecay lambda = lightning_decay(load_at(p.slopes, work.h), 1);
  for (int64_t done = 1; done <= path.length; ++done) {
    fetch_node(p, row.token_begin + path.node[done - 1], work.h, token);
    if (!work.works) continue;
    float v[4];
    lightning_value(token.v, work.first, v);
    update_lightning<kRows>(token.k, v, lambda, S);
    for (int64_t m = 0; m < p.snapshots.count; ++m) {
      if (snapshot_after(p.snapshots, p.rows, work.n, row, path.length, m) != done) continue;
      keep_lightning<kRows>(p, work.n, p.snapshots.slot.at(m), work.h, work.first, S);
    }
  }
  if (work.works) keep_lightning<kRows>(p, work.n, row.slot, work.h, work.first, S);
}

template <int kRows>
__global__ void __launch_bounds__(32 * kWarps)
    lightning_commit_kernel(const __grid_constant__ Commit p, int64_t pieces, int64_t tasks) {
  __shared__ DevicePath path;
  __shared__ LightningToken token;
  const LightningDevice& lightning = p.lightning;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t piece = task % pieces;
    const int64_t first = (piece * kWarps + threadIdx.x / 32) * kLightningColumns;
    const Work work{task / pieces / lightning.H, task / pieces % lightning.H, first,
                    first < lightning.D};
    DeviceStatus* status = piece == 0 && work.h == 0 ? lightning.status : nullptr;
    const DeviceRow row = read_verify_row(lightning.rows, work.n, status);
    read_accepted_path(p.nodes, row, work.n, status, path);
    if (piece == 0 && work.h == 0 && threadIdx.x < 32) {
      report_commit(lightning.snapshots, lightning.rows, work.n, row, path.length, p.taken, status);
    }
    if (path.length > 0) commit_columns<kRows>(lightning, work, row, path, token);
  }
}

LightningDevice commit_device(const LightningCommitParams& p, const ExecContext& context) {
  LightningDevice d{};
  d.rows = device_rows(p.rows, p.state.shape[0], p.record.k.shape[0]);
  d.snapshots = device_snapshots(p.snapshots);
  d.k = device_view<3>(p.record.k);
  d.v = device_view<3>(p.record.v);
  d.slopes = device_view<1>(p.slopes);
  d.state = device_view<4>(p.state);
  d.H = static_cast<int32_t>(p.state.shape[1]);
  d.D = static_cast<int32_t>(p.state.shape[2]);
  d.layer = p.layer;
  d.status = context.status;
  return d;
}

}  // namespace

Status lightning_commit_cuda(const LightningCommitParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const Commit p{commit_device(params, context),
                 {index_view(params.parent), index_view(params.accepted_node)},
                 device_taken(params.taken)};
  const int64_t pieces = ceil_div(p.lightning.D, kWarps * kLightningColumns);
  const int64_t tasks = p.lightning.rows.count * p.lightning.H * pieces;
  return with_lightning_rows(p.lightning.D, [&]<int kRows>() {
    return launch("lightning_commit", lightning_commit_kernel<kRows>, grid_of(tasks), 32 * kWarps,
                  context, p, pieces, tasks);
  });
}

}  // namespace linestate
