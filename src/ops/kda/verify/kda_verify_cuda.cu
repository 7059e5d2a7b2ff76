// Verify on a GPU. A row of few nodes is answered in dual form, all nodes at once. A longer one goes
// node by node with its rows of the state in registers: a node that does not follow the one before
// it starts from the committed state again and takes the records of its path. Which of the two it is
// depends on the row's own number of nodes. The state is only read.
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
__device__ void rebuild_rows(const Verify& p, const DeviceRow& row, const VerifyWork& work,
                             int64_t first, const KdaGateHead& head, const DeviceDraftTree& tree,
                             int node, KdaLaneRows<Map>& rows) {
  load_kda_rows<Map>(p.kda, row.slot, work.j, first, row.fresh, rows);
  if (node < 0) return;
  __syncwarp();  // this warp's u of earlier nodes
  const int depth = tree.depth(node);
  for (int step = 0; step < depth; ++step) {
    const int64_t t = row.token_begin + tree.ancestor(node, depth - 1 - step);
    KdaLaneToken<Map> token;
    load_kda_token<Map>(p.kda, head, t, work.j, token);
    const float u = load_kda_u<Map>(p.kda, p.record, t, work.j, first);
    update_kda_rows<Map>(token.alpha, token.k, u, rows);
  }
}

/// A row of many nodes, the rows of S from `first` on.
template <typename Map>
__device__ void walk_nodes(const Verify& p, const DeviceRow& row, const VerifyWork& work,
                           int64_t first, const DeviceDraftTree& tree) {
  const KdaGateHead head = kda_gate_head(p.kda, work.j);
  KdaLaneRows<Map> rows;
  int behind = -2;  // the node whose state the registers hold
  for (int node = 0; node < row.valid; ++node) {
    const int64_t t = row.token_begin + node;
    if (tree.inert(node)) {
      clear_kda_out<Map>(p.kda, t, work.j, first);
      continue;
    }
    const int parent = tree.parent[node];
    if (parent != behind) rebuild_rows<Map>(p, row, work, first, head, tree, parent, rows);
    KdaLaneToken<Map> token;
    load_kda_token<Map>(p.kda, head, t, work.j, token);
    if (first == 0) store_kda_key<Map>(p.kda, p.record, t, work.j, token);
    const float v = load_kda_value<Map>(p.kda, t, work.j, first);
    const KdaLaneResult result = step_kda_rows<Map>(token, v, rows);
    store_kda_out<Map>(p.kda, t, work.j, first, result.o);
    store_kda_u<Map>(p.kda, p.record, t, work.j, first, result.u);
    behind = node;
  }
}

/// A row of many nodes. Apart, because it would take registers from the others.
template <typename Map>
__device__ __noinline__ void walk_block(const Verify& p, VerifyWork work,
                                        const DeviceDraftTree& tree) {
  const DeviceRow row = read_verify_row(p.kda.rows, work.n, nullptr);
  const int64_t warp = threadIdx.x / 32;
  for (int64_t first = work.begin + warp * Map::kWarpRows; first < work.end;
       first += kVerifyWarps * Map::kWarpRows) {
    walk_nodes<Map>(p, row, work, first, tree);
  }
}

/// Zero output of the tokens behind the row's nodes.
__device__ void clear_placeholders(const Verify& p, const DeviceRow& row, const VerifyWork& work) {
  for (int64_t i = row.valid; i < row.tokens; ++i) {
    for (int64_t at = work.begin + threadIdx.x; at < work.end; at += 32 * kVerifyWarps) {
      store_at(p.kda.out, 0.0f, row.token_begin + i, work.j, at);
    }
  }
}

template <typename Map>
struct VerifyShared {
  using Tile = KdaTileFor<Map::kChannels>;
  KdaTileStage<Tile, 32 * kVerifyWarps> stage;
  DualNodes<Map> nodes;
  DeviceDraftTree tree;
};

/// How the tasks (row, value head, piece of V) are numbered; row N is the tail behind all rows.
struct VerifyTasks {
  int64_t count;
  int32_t pieces, piece_rows;
};

__device__ VerifyWork work_of(const Verify& p, const VerifyTasks& tasks, int64_t task) {
  const auto begin = static_cast<int32_t>(task % tasks.pieces) * tasks.piece_rows;
  const int64_t head = task / tasks.pieces;
  return {head / p.kda.HV, static_cast<int32_t>(head % p.kda.HV), begin,
          min(begin + tasks.piece_rows, p.kda.V)};
}

__device__ DeviceRow row_of(const Verify& p, const VerifyWork& work) {
  DeviceStatus* status = work.begin == 0 && work.j == 0 ? p.kda.status : nullptr;
  return read_verify_row(p.kda.rows, work.n, status);
}

/// First of the warp's rows of S.
template <typename Tile>
__device__ int first_of(const VerifyWork& work) {
  return work.begin + static_cast<int>(threadIdx.x / 32) * Tile::kWarpRows;
}

/// What a block has to know of a task to fetch its state: a slot, or one of these.
constexpr int64_t kNoState = -1;
constexpr int64_t kFreshState = -2;

template <typename Map>
__device__ int64_t state_of(const DeviceRow& row) {
  if (row.valid == 0 || row.valid > DualNodes<Map>::kMost) return kNoState;
  return row.fresh ? kFreshState : row.slot;
}

template <typename Map>
__device__ void fetch_state(const Verify& p, const VerifyWork& work, int64_t state,
                            VerifyShared<Map>& shared) {
  using Tile = KdaTileFor<Map::kChannels>;
  const int first = first_of<Tile>(work);
  if (state == kNoState || first >= work.end) return;
  const bool fresh = state == kFreshState;
  fetch_kda_tile<Tile>(p.kda.state, p.kda.K, {fresh ? 0 : state, work.j, first, p.kda.V, fresh},
                       shared.stage);
}

/// One task, whose state is on its way; starts the way of the next one's as soon as it can.
template <typename Map>
__device__ void verify_task(const Verify& p, const VerifyTasks& tasks, int64_t task,
                            VerifyShared<Map>& shared) {
  using Tile = KdaTileFor<Map::kChannels>;
  const VerifyWork work = work_of(p, tasks, task);
  const DeviceRow row = read_verify_row(p.kda.rows, work.n, nullptr);
  const int64_t after = task + gridDim.x;
  int64_t state = kNoState;
  if (after < tasks.count) state = state_of<Map>(row_of(p, work_of(p, tasks, after)));
  clear_placeholders(p, row, work);
  if (row.valid > 0) {
    DeviceStatus* status = work.begin == 0 && work.j == 0 ? p.kda.status : nullptr;
    fill_draft_tree(p.parent, row, work.n, status, shared.tree);
  }
  if (row.valid == 0 || row.valid > DualNodes<Map>::kMost) {
    if (row.valid > 0) walk_block<Map>(p, work, shared.tree);
    fetch_state<Map>(p, work_of(p, tasks, after), state, shared);
    return;
  }
  prepare_nodes<Map>(p, row, work, shared.tree, shared.nodes);
  __syncthreads();
  relate_nodes<Map>(row, shared.tree, shared.nodes);
  KdaTileRows<Tile> rows;
  take_kda_tile<Tile>(shared.stage, p.kda.state.dtype, rows);
  fetch_state<Map>(p, work_of(p, tasks, after), state, shared);
  const int first = first_of<Tile>(work);
  if (first < work.end) answer_nodes<Map, Tile>(p, row, work, first, rows, shared.nodes);
}

template <typename Map>
__global__ void __launch_bounds__(32 * kVerifyWarps, 2)
    kda_verify_kernel(const __grid_constant__ Verify p, VerifyTasks tasks) {
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<VerifyShared<Map>*>(memory);
  const VerifyWork work = work_of(p, tasks, blockIdx.x);
  fetch_state<Map>(p, work, state_of<Map>(row_of(p, work)), shared);
  for (int64_t task = blockIdx.x; task < tasks.count; task += gridDim.x) {
    verify_task<Map>(p, tasks, task, shared);
  }
}

template <typename Map>
Status launch_verify(const Verify& p, const ExecContext& context) {
  constexpr auto kBytes = static_cast<int>(sizeof(VerifyShared<Map>));
  const auto kernel = reinterpret_cast<const void*>(kda_verify_kernel<Map>);
  LINESTATE_CUDA_CALL("kda_verify", cudaFuncSetAttribute(
                                        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  int processors = 0;
  LINESTATE_CUDA_CALL(
      "number of processors",
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, context.device.index));
  // Few heads: smaller pieces, so that the whole GPU reads. Rows do not see each other, so no bit
  // depends on it.
  constexpr int64_t kWarpRows = KdaTileFor<Map::kChannels>::kWarpRows;
  const int64_t heads = p.kda.rows.count * p.kda.HV;
  const int64_t most = heads >= 2 * processors ? kVerifyWarps : 2 * heads >= processors ? 2 : 1;
  const int64_t piece_rows = most * kWarpRows;
  VerifyTasks tasks{0, static_cast<int32_t>(ceil_div(p.kda.V, piece_rows)),
                    static_cast<int32_t>(piece_rows)};
  tasks.count = (p.kda.rows.count + 1) * p.kda.HV * tasks.pieces;
  const int64_t blocks = min_i64(tasks.count, 2 * processors);
  if (blocks == 0) return {};
  Verify device = p;
  void* arguments[] = {&device, &tasks};
  return cuda_status("kda_verify",
                     cudaLaunchKernel(kernel, grid_of(blocks), dim3(32 * kVerifyWarps), arguments,
                                      sizeof(VerifyShared<Map>),
                                      static_cast<cudaStream_t>(context.stream)));
}

}  // namespace

Status kda_verify_cuda(const KdaVerifyParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const Verify p{kda_device(params.kda, context), kda_record_device(params.record),
                 index_view(params.parent)};
  const Status status =
      with_kda_map(p.kda.K, [&]<typename Map>() { return launch_verify<Map>(p, context); });
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.kda.out);
}

}  // namespace linestate
