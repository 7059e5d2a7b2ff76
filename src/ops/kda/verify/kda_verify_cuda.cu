// Verify on a GPU: rows of the state stay in registers while their nodes go by in order. A node
// that does not follow the one before it starts from the committed state again and takes the
// records of its path; a chain never does. The state is only read.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/draft_tree/draft_tree_device.cuh"
#include "ops/kda/kda_record_device.cuh"
#include "ops/kda/verify/kda_verify_kernels.h"

namespace linestate {
namespace {

constexpr int kWarps = 4;

struct Verify {
  KdaDevice kda;
  KdaRecordDevice record;
  IndexView parent;
};

/// What one warp works on.
struct Work {
  int64_t j;
  int64_t first;  // of the warp's rows of S
  bool records;   // this warp keeps alpha and k
};

/// The state behind `node`, which is -1 for the committed one.
template <typename Map>
__device__ void rebuild_rows(const Verify& p, const DeviceRow& row, const Work& work,
                             const KdaGateHead& head, const DeviceDraftTree& tree, int node,
                             KdaLaneRows<Map>& rows) {
  load_kda_rows<Map>(p.kda, row.slot, work.j, work.first, row.fresh, rows);
  if (node < 0) return;
  __syncwarp();  // this warp's u of earlier nodes
  const int depth = tree.depth(node);
  for (int step = 0; step < depth; ++step) {
    const int64_t t = row.token_begin + tree.ancestor(node, depth - 1 - step);
    KdaLaneToken<Map> token;
    load_kda_token<Map>(p.kda, head, t, work.j, token);
    const float u = load_kda_u<Map>(p.kda, p.record, t, work.j, work.first);
    update_kda_rows<Map>(token.alpha, token.k, u, rows);
  }
}

template <typename Map>
__device__ void verify_rows(const Verify& p, const DeviceRow& row, const Work& work,
                            const DeviceDraftTree& tree) {
  const KdaGateHead head = kda_gate_head(p.kda, work.j);
  KdaLaneRows<Map> rows;
  int behind = -2;  // the node whose state the registers hold
  for (int node = 0; node < row.valid; ++node) {
    const int64_t t = row.token_begin + node;
    if (tree.inert(node)) {
      clear_kda_out<Map>(p.kda, t, work.j, work.first);
      continue;
    }
    const int parent = tree.parent[node];
    if (parent != behind) rebuild_rows<Map>(p, row, work, head, tree, parent, rows);
    KdaLaneToken<Map> token;
    load_kda_token<Map>(p.kda, head, t, work.j, token);
    if (work.records) store_kda_key<Map>(p.kda, p.record, t, work.j, token);
    const float v = load_kda_value<Map>(p.kda, t, work.j, work.first);
    const KdaLaneResult result = step_kda_rows<Map>(token, v, rows);
    store_kda_out<Map>(p.kda, t, work.j, work.first, result.o);
    store_kda_u<Map>(p.kda, p.record, t, work.j, work.first, result.u);
    behind = node;
  }
}

/// Task = (row, value head, piece of V); row N is the tail behind all rows.
template <typename Map>
__global__ void __launch_bounds__(32 * kWarps)
    kda_verify_kernel(const __grid_constant__ Verify p, int64_t pieces, int64_t tasks) {
  __shared__ DeviceDraftTree tree;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t piece = task % pieces;
    const int64_t j = task / pieces % p.kda.HV;
    const int64_t n = task / pieces / p.kda.HV;
    DeviceStatus* status = piece == 0 && j == 0 ? p.kda.status : nullptr;
    const DeviceRow row = read_verify_row(p.kda.rows, n, status);
    fill_draft_tree(p.parent, row, n, status, tree);
    const int64_t warp = threadIdx.x / 32;
    const Work work{j, (piece * kWarps + warp) * Map::kWarpRows, piece == 0 && warp == 0};
    for (int64_t i = row.valid; i < row.tokens; ++i) {
      clear_kda_out<Map>(p.kda, row.token_begin + i, j, work.first);
    }
    if (work.first < p.kda.V) verify_rows<Map>(p, row, work, tree);
  }
}

}  // namespace

Status kda_verify_cuda(const KdaVerifyParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const Verify p{kda_device(params.kda, context), kda_record_device(params.record),
                 index_view(params.parent)};
  const Status status = with_kda_map(p.kda.K, [&]<typename Map>() {
    const int64_t pieces = ceil_div(p.kda.V, kWarps * Map::kWarpRows);
    const int64_t tasks = (p.kda.rows.count + 1) * p.kda.HV * pieces;
    return launch("kda_verify", kda_verify_kernel<Map>, grid_of(tasks), 32 * kWarps, context, p,
                  pieces, tasks);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.kda.out);
}

}  // namespace linestate
