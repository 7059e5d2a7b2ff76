// Commit on a GPU: the keys and values of the accepted path on columns of the state in registers,
// in the arithmetic of decode.
#include "base/int_math.h"
#include "cuda/launch.cuh"
#include "ops/draft_tree/draft_tree_device.cuh"
#include "ops/lightning/commit/lightning_commit_kernels.h"
#include "ops/lightning/lightning_nodes.cuh"

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

/// Nodes of the accepted path, kAtOnce of them.
template <int kRows>
struct Nodes {
  static constexpr int kChannels = kLightningGroups * kRows;
  static constexpr int kAtOnce = 8;
  alignas(16) LightningVectors<kChannels, kAtOnce> k, v;
};

template <int kRows>
__device__ void fetch_nodes(const LightningDevice& p, const DeviceRow& row, const DevicePath& path,
                            int64_t h, int begin, Nodes<kRows>& nodes) {
  constexpr int kChannels = Nodes<kRows>::kChannels;
  constexpr int kAtOnce = Nodes<kRows>::kAtOnce;
  const auto token_at = [&](int i) { return row.token_begin + path.node[begin + i]; };
  const int count = min(path.length - begin, kAtOnce);
  __syncthreads();  // the ones before have been used
  stage_lightning<kChannels, kAtOnce, 32 * kWarps>({p.k, {}, 1.0f}, p.D, count, h, token_at,
                                                   nodes.k);
  stage_lightning<kChannels, kAtOnce, 32 * kWarps>({p.v, {}, 1.0f}, p.D, count, h, token_at,
                                                   nodes.v);
  __syncthreads();
}

template <int kRows>
__device__ void commit_columns(const LightningDevice& p, const Work& work, const DeviceRow& row,
                               const DevicePath& path, Nodes<kRows>& nodes,
                               LightningColumns<kRows>& S) {
  const LightningDecay lambda = lightning_decay(load_at(p.slopes, work.h), 1);
  int64_t next = next_snapshot(p.snapshots, p.rows, work.n, row, path.length, 0);
  for (int done = 0; done < path.length; ++done) {
    const int at = done % Nodes<kRows>::kAtOnce;
    if (at == 0) fetch_nodes<kRows>(p, row, path, work.h, done, nodes);
    if (!work.works) continue;
    float v[4];
    lightning_value(nodes.v[at], work.first, v);
    update_lightning<kRows>(nodes.k[at], v, lambda, S);
    if (done + 1 != next) continue;
    for (int64_t m = 0; m < p.snapshots.count; ++m) {
      if (snapshot_after(p.snapshots, p.rows, work.n, row, path.length, m) != next) continue;
      keep_lightning<kRows>(p, work.n, p.snapshots.slot.at(m), work.h, work.first, S);
    }
    next = next_snapshot(p.snapshots, p.rows, work.n, row, path.length, next);
  }
  if (work.works) keep_lightning<kRows>(p, work.n, row.slot, work.h, work.first, S);
}

template <int kRows>
__global__ void __launch_bounds__(32 * kWarps, kRows > 16 ? 2 : 4)
    lightning_commit_kernel(const __grid_constant__ Commit p, LightningTasks tasks) {
  __shared__ DevicePath path;
  __shared__ Nodes<kRows> nodes;
  const LightningDevice& lightning = p.lightning;
  uint32_t piece;
  uint32_t head;
  const uint32_t row_number = tasks.heads.divide(tasks.pieces.divide(blockIdx.x, piece), head);
  const int64_t n = row_number;
  const int64_t h = head;
  const int64_t first =
      (static_cast<int64_t>(piece) * kWarps + threadIdx.x / 32) * kLightningColumns;
  const Work work{n, h, first, first < lightning.D};
  DeviceStatus* status = piece == 0 && work.h == 0 ? lightning.status : nullptr;
  const DeviceRow row = read_verify_row(lightning.rows, work.n, status);
  LightningColumns<kRows> S;
  if (row.live && work.works && p.nodes.accepted_node.at(work.n) >= 0) {
    load_lightning<kRows>(lightning, row.slot, work.h, first, row.fresh, S);
  }
  read_accepted_path(p.nodes, row, work.n, status, path);
  if (piece == 0 && work.h == 0 && threadIdx.x < 32) {
    report_commit(lightning.snapshots, lightning.rows, work.n, row, path.length, p.taken, status);
  }
  if (path.length > 0) commit_columns<kRows>(lightning, work, row, path, nodes, S);
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
  const int64_t rows = p.lightning.rows.count;
  if (rows * p.lightning.H * pieces > kMostLightningTasks) {
    return Status(StatusCode::kUnsupported, "rows times heads exceed 2^31");
  }
  const LightningTasks tasks(rows, p.lightning.H, pieces);
  return with_lightning_rows(p.lightning.D, [&]<int kRows>() {
    return launch("lightning_commit", lightning_commit_kernel<kRows>, grid_of(tasks.count),
                  32 * kWarps, context, p, tasks);
  });
}

}  // namespace linestate
