// Commit on a GPU: the record of the accepted path on rows of the state in registers, in the
// arithmetic of decode; a second kernel moves the convolution's windows.
#include "base/int_math.h"
#include "cuda/launch.cuh"
#include "ops/common/conv_window_device.cuh"
#include "ops/draft_tree/draft_tree_device.cuh"
#include "ops/kda/commit/kda_commit_kernels.h"
#include "ops/kda/kda_record_device.cuh"

namespace linestate {
namespace {

constexpr int kWarps = 4;
constexpr int kWindowThreads = 128;

struct Commit {
  KdaDevice kda;  // rows, snapshots, state and sizes only
  KdaRecordDevice record;
  DeviceAccepted nodes;
  DeviceTaken taken;
};

template <typename Map>
__device__ void apply_token(const Commit& p, int64_t t, int64_t j, int64_t first,
                            KdaLaneRows<Map>& rows) {
  const int64_t h = j / (p.kda.HV / p.kda.H);
  float k[Map::kElems];
  float alpha[Map::kElems];
  load_kda_lanes<Map>(p.record.k, p.record.k.offset(t, h), p.kda.K, k);
  load_kda_lanes<Map>(p.record.alpha, p.record.alpha.offset(t, j), p.kda.K, alpha);
  const float inverse = load_at(p.record.k_inverse_norm, t, h);
#pragma unroll
  for (int i = 0; i < Map::kElems; ++i) k[i] *= inverse;
  update_kda_rows<Map>(alpha, k, load_kda_u<Map>(p.kda, p.record, t, j, first), rows);
}

template <typename Map>
__device__ void commit_rows(const Commit& p, int64_t n, int64_t j, const DeviceRow& row,
                            const DevicePath& path, int64_t first) {
  const KdaDevice& kda = p.kda;
  KdaLaneRows<Map> rows;
  load_kda_rows<Map>(kda, row.slot, j, first, row.fresh, rows);
  int64_t next = next_snapshot(kda.snapshots, kda.rows, n, row, path.length, 0);
  for (int64_t done = 1; done <= path.length; ++done) {
    apply_token<Map>(p, row.token_begin + path.node[done - 1], j, first, rows);
    if (done != next) continue;
    for (int64_t m = 0; m < kda.snapshots.count; ++m) {
      if (snapshot_after(kda.snapshots, kda.rows, n, row, path.length, m) != done) continue;
      keep_kda_rows<Map>(kda, n, kda.snapshots.slot.at(m), j, first, rows);
    }
    next = next_snapshot(kda.snapshots, kda.rows, n, row, path.length, done);
  }
  keep_kda_rows<Map>(kda, n, row.slot, j, first, rows);
}

template <typename Map>
__global__ void __launch_bounds__(32 * kWarps)
    kda_commit_kernel(const __grid_constant__ Commit p, int64_t pieces, int64_t tasks) {
  __shared__ DevicePath path;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t piece = task % pieces;
    const int64_t j = task / pieces % p.kda.HV;
    const int64_t n = task / pieces / p.kda.HV;
    DeviceStatus* status = piece == 0 && j == 0 ? p.kda.status : nullptr;
    const DeviceRow row = read_verify_row(p.kda.rows, n, status);
    read_accepted_path(p.nodes, row, n, status, path);
    if (piece == 0 && j == 0 && threadIdx.x < 32) {
      report_commit(p.kda.snapshots, p.kda.rows, n, row, path.length, p.taken, status);
    }
    const int64_t first = (piece * kWarps + threadIdx.x / 32) * Map::kWarpRows;
    if (path.length > 0 && first < p.kda.V) commit_rows<Map>(p, n, j, row, path, first);
  }
}

__global__ void __launch_bounds__(kWindowThreads)
    commit_window_kernel(const __grid_constant__ WindowDevice p, DeviceAccepted nodes,
                         int64_t blocks, int64_t tasks) {
  __shared__ DevicePath path;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t n = task / blocks;
    const int64_t c = task % blocks * kWindowThreads + threadIdx.x;
    const DeviceRow row = read_verify_row(p.rows, n, nullptr);
    read_accepted_path(nodes, row, n, nullptr, path);
    if (path.length == 0 || c >= p.channels) continue;
    move_window(p, n, row, c, path.length,
                [&](int64_t i) { return row.token_begin + path.node[i]; });
  }
}

KdaDevice commit_device(const KdaCommitParams& p, const ExecContext& context) {
  KdaDevice d{};
  d.rows = device_rows(p.rows, p.state.shape[0], p.record.u.shape[0]);
  d.snapshots = device_snapshots(p.snapshots);
  d.state = device_view<4>(p.state);
  d.H = static_cast<int32_t>(p.record.k.shape[1]);
  d.HV = static_cast<int32_t>(p.state.shape[1]);
  d.V = static_cast<int32_t>(p.state.shape[2]);
  d.K = static_cast<int32_t>(p.state.shape[3]);
  d.layer = p.layer;
  d.status = context.status;
  return d;
}

Status commit_windows(const KdaCommitParams& params, const Commit& p, const ExecContext& context) {
  if (!params.window.defined()) return {};
  const WindowDevice windows{p.kda.rows,
                             p.kda.snapshots,
                             device_view<3>(params.window),
                             device_view<2>(params.conv_x),
                             params.window.shape[1],
                             static_cast<int32_t>(params.window.shape[2])};
  const int64_t blocks = ceil_div(windows.channels, kWindowThreads);
  const int64_t tasks = p.kda.rows.count * blocks;
  return launch("commit_window", commit_window_kernel, grid_of(tasks), kWindowThreads, context,
                windows, p.nodes, blocks, tasks);
}

}  // namespace

Status kda_commit_cuda(const KdaCommitParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const Commit p{commit_device(params, context),
                 kda_record_device(params.record),
                 {index_view(params.parent), index_view(params.accepted_node)},
                 device_taken(params.taken)};
  const Status status = with_kda_map(p.kda.K, [&]<typename Map>() {
    const int64_t pieces = ceil_div(p.kda.V, kWarps * Map::kWarpRows);
    const int64_t tasks = p.kda.rows.count * p.kda.HV * pieces;
    return launch("kda_commit", kda_commit_kernel<Map>, grid_of(tasks), 32 * kWarps, context, p,
                  pieces, tasks);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  return commit_windows(params, p, context);
}

}  // namespace linestate
