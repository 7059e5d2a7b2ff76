// Verify on a GPU. A row of few nodes is answered in dual form, all nodes at once. A longer one
// goes node by node with its rows of the state in registers: a node that does not follow the one
// before it starts from the committed state again and takes the records of its path. Which of the
// two it is depends on the row's own number of nodes. The state is only read.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/kda/verify/kda_verify_dual.cuh"
#include "ops/kda/verify/kda_verify_kernels.h"

namespace linestate {
namespace {

using Verify = KdaVerifyDevice;

/// The state behind `node`, which is -1 for the committed one.
template <typename Map>
__device__ void rebuild_rows(const Verify& p, const DeviceRow& row, const KdaTask& task,
                             int64_t first, const KdaGateHead& head, const DeviceDraftTree& tree,
                             int node, KdaLaneRows<Map>& rows) {
  load_kda_rows<Map>(p.kda, row.slot, task.j, first, row.fresh, rows);
  if (node < 0) return;
  __syncwarp();  // this warp's u of earlier nodes
  const int depth = tree.depth(node);
  for (int step = 0; step < depth; ++step) {
    const int64_t t = row.token_begin + tree.ancestor(node, depth - 1 - step);
    KdaLaneToken<Map> token;
    load_kda_token<Map>(p.kda, head, t, task.j, token);
    const float u = load_kda_u<Map>(p.kda, p.record, t, task.j, first);
    update_kda_rows<Map>(token.alpha, token.k, u, rows);
  }
}

/// A row of many nodes, the rows of S from `first` on.
template <typename Map>
__device__ void walk_nodes(const Verify& p, const DeviceRow& row, const KdaTask& task,
                           int64_t first, const DeviceDraftTree& tree) {
  const KdaGateHead head = kda_gate_head(p.kda, task.j);
  KdaLaneRows<Map> rows;
  int behind = -2;  // the node whose state the registers hold
  for (int node = 0; node < row.valid; ++node) {
    const int64_t t = row.token_begin + node;
    if (tree.inert(node)) {
      clear_kda_out<Map>(p.kda, t, task.j, first);
      continue;
    }
    const int parent = tree.parent[node];
    if (parent != behind) rebuild_rows<Map>(p, row, task, first, head, tree, parent, rows);
    KdaLaneToken<Map> token;
    load_kda_token<Map>(p.kda, head, t, task.j, token);
    if (first == 0) store_kda_key<Map>(p.kda, p.record, t, task.j, token);
    const float v = load_kda_value<Map>(p.kda, t, task.j, first);
    const KdaLaneResult result = step_kda_rows<Map>(token, v, rows);
    store_kda_out<Map>(p.kda, t, task.j, first, result.o);
    store_kda_u<Map>(p.kda, p.record, t, task.j, first, result.u);
    behind = node;
  }
}

/// A row of many nodes. Apart, because it would take registers from the others.
template <typename Map>
__device__ __noinline__ void walk_block(const Verify& p, KdaTask task,
                                        const DeviceDraftTree& tree) {
  const DeviceRow row = read_verify_row(p.kda.rows, task.n, nullptr);
  const int64_t warp = threadIdx.x / 32;
  for (int64_t first = task.begin + warp * Map::kWarpRows; first < task.end;
       first += kPanelWarps * Map::kWarpRows) {
    walk_nodes<Map>(p, row, task, first, tree);
  }
}

/// Zero output of the tokens behind the row's nodes.
__device__ void clear_placeholders(const Verify& p, const DeviceRow& row, const KdaTask& task) {
  for (int64_t i = row.valid; i < row.tokens; ++i) {
    for (int64_t at = task.begin + threadIdx.x; at < task.end; at += 32 * kPanelWarps) {
      store_at(p.kda.out, 0.0f, row.token_begin + i, task.j, at);
    }
  }
}

template <typename Map>
struct VerifyShared {
  KdaStageOf<Map> stage;
  DualNodes<Map> nodes;
  DeviceDraftTree tree;
};

template <typename Map>
__device__ int64_t state_of(const DeviceRow& row) {
  if (row.valid == 0 || row.valid > DualNodes<Map>::kMost) return kNoState;
  return row.fresh ? kFreshState : row.slot;
}

template <typename Map>
__device__ void fetch_next(const Verify& p, const KdaTask& task, int64_t state,
                           VerifyShared<Map>& shared) {
  fetch_task<KdaPanelOf<Map>>(p.kda, task, state, shared.stage);
}

/// Task number `now`, whose state is on its way; starts the way of the next one's as soon as it
/// can.
template <typename Map>
__device__ void verify_task(const Verify& p, const KdaTasks& tasks, int32_t now,
                            VerifyShared<Map>& shared) {
  using Panel = KdaPanelOf<Map>;
  const KdaTask task = tasks.at(now);
  const DeviceRow row = read_verify_row(p.kda.rows, task.n, task.status(p.kda.status));
  const int32_t after = tasks.after(now);
  int64_t state = kNoState;
  if (after < tasks.count) {
    state = state_of<Map>(read_verify_row(p.kda.rows, tasks.at(after).n, nullptr));
  }
  clear_placeholders(p, row, task);
  if (row.valid == 0 || row.valid > DualNodes<Map>::kMost) {
    if (row.valid > 0) {
      fill_draft_tree(p.parent, row, task.n, task.status(p.kda.status), shared.tree);
      walk_block<Map>(p, task, shared.tree);
    }
    fetch_next<Map>(p, tasks.at(after), state, shared);
    return;
  }
  prepare_nodes<Map>(p, row, task, shared.tree, shared.nodes);
  __syncthreads();
  relate_nodes<Map>(row, shared.tree, shared.nodes);
  KdaPanelRows<Panel> rows;
  take_kda_panel<Panel>(shared.stage, p.kda.state.dtype, rows);
  fetch_next<Map>(p, tasks.at(after), state, shared);
  const int first = first_row_of<Panel>(task);
  if (first < task.end) answer_nodes<Map, Panel>(p, row, task, first, rows, shared.nodes);
}

/// Row N is the tail behind all rows.
template <typename Map>
__global__ void __launch_bounds__(kPanelThreads, kPanelBlocks)
    kda_verify_kernel(const __grid_constant__ Verify p, const __grid_constant__ KdaTasks tasks) {
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<VerifyShared<Map>*>(memory);
  const KdaTask task = tasks.at(static_cast<int32_t>(blockIdx.x));
  fetch_next<Map>(p, task, state_of<Map>(read_verify_row(p.kda.rows, task.n, nullptr)), shared);
  for (auto now = static_cast<int32_t>(blockIdx.x); now < tasks.count; now = tasks.after(now)) {
    verify_task<Map>(p, tasks, now, shared);
  }
}

}  // namespace

Status kda_verify_cuda(const KdaVerifyParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  Verify p{kda_device(params.kda, context),
           kda_record_device(params.record),
           index_view(params.parent),
           {}};
  p.heads = FastDivider(p.kda.HV / p.kda.H);
  const Status status = with_kda_map(p.kda.K, [&]<typename Map>() {
    return launch_kda_tasks<Map>("kda_verify", kda_verify_kernel<Map>, p, p.kda,
                                 p.kda.rows.count + 1, false,
                                 static_cast<int>(sizeof(VerifyShared<Map>)), context);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.kda.out);
}

}  // namespace linestate
