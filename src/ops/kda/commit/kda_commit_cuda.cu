// Commit on a GPU, one launch: the record of the accepted path on panels of the state, in the
// arithmetic of decode, and each task takes its share of the row's convolution channels. While a
// block works on one task, the state of its next one is on the way.
#include "base/int_math.h"
#include "ops/common/conv_window_device.cuh"
#include "ops/draft_tree/draft_tree_device.cuh"
#include "ops/kda/commit/kda_commit_kernels.h"
#include "ops/kda/kda_panel_tasks.cuh"
#include "ops/kda/kda_record_device.cuh"

namespace linestate {
namespace {

constexpr int kRecordsAtOnce = kPanelWarps;

struct Commit {
  KdaDevice kda;  // rows, snapshots, state and sizes only
  KdaRecordDevice record;
  DeviceAccepted nodes;
  DeviceTaken taken;
  WindowDevice window;  // no channels when there is none
};

template <typename Map>
struct CommitShared {
  KdaStageOf<Map> stage;
  float alpha[kRecordsAtOnce][Map::kChannels];
  float k[kRecordsAtOnce][Map::kChannels];
  float u[kRecordsAtOnce][kPanelBlockRows];
  DevicePath path;
};

/// What to fetch for a row. A bad accepted node shows only once its path is walked: its state is
/// then fetched in vain.
__device__ int64_t state_of(const Commit& p, int64_t n) {
  const DeviceRow row = read_verify_row(p.kda.rows, n, nullptr);
  if (!row.live || p.nodes.accepted_node.at(n) < 0) return kNoState;
  return row.fresh ? kFreshState : row.slot;
}

template <typename Map>
__device__ void fetch_next(const Commit& p, const KdaTask& task, int64_t state,
                           CommitShared<Map>& shared) {
  fetch_task<KdaPanelOf<Map>>(p.kda, task, state, shared.stage);
}

/// Records of the path from number `begin` on, a warp each. By the whole block.
template <typename Map>
__device__ void load_records(const Commit& p, const KdaTask& task, const DeviceRow& row, int begin,
                             CommitShared<Map>& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  __syncthreads();  // the ones before have been used
  if (begin + warp < shared.path.length) {
    const int64_t t = row.token_begin + shared.path.node[begin + warp];
    const int64_t h = task.j / (p.kda.HV / p.kda.H);
    float alpha[Map::kElems];
    float k[Map::kElems];
    load_kda_lanes<Map>(p.record.alpha, p.record.alpha.offset(t, task.j), p.kda.K, alpha);
    load_kda_lanes<Map>(p.record.k, p.record.k.offset(t, h), p.kda.K, k);
    const float inverse = load_at(p.record.k_inverse_norm, t, h);
#pragma unroll
    for (int e = 0; e < kPanelBlockRows / 32; ++e) {
      const int at = lane_id() + 32 * e;
      const bool mine = task.begin + at < task.end;
      shared.u[warp][at] = mine ? load_at(p.record.u, t, task.j, task.begin + at) : 0.0f;
    }
#pragma unroll
    for (int c = 0; c < Map::kElems; ++c) k[c] *= inverse;
    put_lanes<Map>(alpha, shared.alpha[warp]);
    put_lanes<Map>(k, shared.k[warp]);
  }
  __syncthreads();
}

template <typename Panel>
__device__ void keep_panel(const Commit& p, int64_t n, int64_t slot, const KdaTask& task,
                           const KdaPanelRows<Panel>& rows) {
  const KdaPanelAt at{slot, task.j, first_row_of<Panel>(task), task.end, false};
  if (!store_kda_panel<Panel>(p.kda.state, p.kda.K, at, rows)) {
    raise_overflow(p.kda.status, n, slot, p.kda.layer);
  }
}

/// The snapshots wanted after `done` tokens; the next count that one is wanted after.
template <typename Panel>
__device__ int64_t keep_snapshots(const Commit& p, const KdaTask& task, const DeviceRow& row,
                                  int64_t reach, int64_t done, const KdaPanelRows<Panel>& rows) {
  const KdaDevice& kda = p.kda;
  for (int64_t m = 0; m < kda.snapshots.count; ++m) {
    if (snapshot_after(kda.snapshots, kda.rows, task.n, row, reach, m) != done) continue;
    keep_panel<Panel>(p, task.n, kda.snapshots.slot.at(m), task, rows);
  }
  return next_snapshot(kda.snapshots, kda.rows, task.n, row, reach, done);
}

/// The task's rows of S through the accepted path; by the whole block.
template <typename Map>
__device__ void commit_rows(const Commit& p, const KdaTask& task, const DeviceRow& row,
                            KdaPanelRows<KdaPanelOf<Map>>& rows, CommitShared<Map>& shared) {
  using Panel = KdaPanelOf<Map>;
  const int first = first_row_of<Panel>(task);
  const int length = shared.path.length;
  int64_t next = next_snapshot(p.kda.snapshots, p.kda.rows, task.n, row, length, 0);
  for (int done = 0; done < length; ++done) {
    const int at = done % kRecordsAtOnce;
    if (at == 0 && done > 0) load_records<Map>(p, task, row, done, shared);
    if (first >= task.end) continue;
    update_kda_panel<Panel>(shared.alpha[at], shared.k[at], shared.u[at] + (first - task.begin),
                            rows);
    if (done + 1 == next) next = keep_snapshots<Panel>(p, task, row, length, next, rows);
  }
  if (first < task.end) keep_panel<Panel>(p, task.n, row.slot, task, rows);
}

/// The task's share of the row's windows.
__device__ void commit_windows(const Commit& p, const KdaTasks& tasks, const KdaTask& task,
                               const DeviceRow& row, const DevicePath& path) {
  const int64_t pieces = tasks.pieces.divisor;
  const int64_t shares = tasks.heads.divisor * pieces;
  const int64_t share = task.j * pieces + task.begin / tasks.piece_rows;
  const int64_t begin = p.window.channels * share / shares;
  const int64_t end = p.window.channels * (share + 1) / shares;
  for (int64_t c = begin + threadIdx.x; c < end; c += kPanelThreads) {
    move_window(p.window, task.n, row, c, path.length,
                [&](int64_t i) { return row.token_begin + path.node[i]; });
  }
}

template <typename Map>
__device__ void commit_task(const Commit& p, const KdaTasks& tasks, int32_t now,
                            CommitShared<Map>& shared) {
  using Panel = KdaPanelOf<Map>;
  const KdaTask task = tasks.at(now);
  const int32_t after = tasks.after(now);
  const int64_t state = after < tasks.count ? state_of(p, tasks.at(after).n) : kNoState;
  DeviceStatus* status = task.status(p.kda.status);
  const DeviceRow row = read_verify_row(p.kda.rows, task.n, status);
  read_accepted_path(p.nodes, row, task.n, status, shared.path);
  if (task.leads() && task.j == 0 && threadIdx.x < 32) {
    report_commit(p.kda.snapshots, p.kda.rows, task.n, row, shared.path.length, p.taken, status);
  }
  if (shared.path.length == 0) {
    wait_async_copies();
    fetch_next<Map>(p, tasks.at(after), state, shared);
    return;
  }
  load_records<Map>(p, task, row, 0, shared);
  commit_windows(p, tasks, task, row, shared.path);
  KdaPanelRows<Panel> rows;
  take_kda_panel<Panel>(shared.stage, p.kda.state.dtype, rows);
  fetch_next<Map>(p, tasks.at(after), state, shared);
  commit_rows<Map>(p, task, row, rows, shared);
}

template <typename Map>
__global__ void __launch_bounds__(kPanelThreads, kPanelBlocks)
    kda_commit_kernel(const __grid_constant__ Commit p, const __grid_constant__ KdaTasks tasks) {
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<CommitShared<Map>*>(memory);
  const KdaTask task = tasks.at(static_cast<int32_t>(blockIdx.x));
  fetch_next<Map>(p, task, state_of(p, task.n), shared);
  for (auto now = static_cast<int32_t>(blockIdx.x); now < tasks.count; now = tasks.after(now)) {
    commit_task<Map>(p, tasks, now, shared);
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

WindowDevice window_device(const KdaCommitParams& params, const KdaDevice& kda) {
  if (!params.window.defined()) return {};
  return {kda.rows,
          kda.snapshots,
          device_view<3>(params.window),
          device_view<2>(params.conv_x),
          params.window.shape[1],
          static_cast<int32_t>(params.window.shape[2])};
}

}  // namespace

Status kda_commit_cuda(const KdaCommitParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  Commit p{};
  p.kda = commit_device(params, context);
  p.record = kda_record_device(params.record);
  p.nodes = {index_view(params.parent), index_view(params.accepted_node)};
  p.taken = device_taken(params.taken);
  p.window = window_device(params, p.kda);
  return with_kda_map(p.kda.K, [&]<typename Map>() {
    const int64_t rows = p.kda.rows.count;
    return launch_kda_tasks<Map>("kda_commit", kda_commit_kernel<Map>, p, p.kda, rows, false,
                                 static_cast<int>(sizeof(CommitShared<Map>)), context);
  });
}

}  // namespace linestate
