// Verify on a GPU: columns of the state stay in registers while their nodes go by in order. A node
// that does not follow the one before it starts from the committed state again and takes the keys
// and values of its path; a chain never does. The state is only read. Rows of few nodes have them
// all in shared memory before the first one.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/draft_tree/draft_tree_device.cuh"
#include "ops/lightning/lightning_nodes.cuh"
#include "ops/lightning/verify/lightning_verify_kernels.h"

namespace linestate {
namespace {

constexpr int kWarps = 4;

struct Verify {
  LightningDevice lightning;
  DeviceView<3> k, v;  // the record
  IndexView parent;
};

struct Work {
  int64_t h, first;
  bool works;  // the warp's columns exist
  LightningDecay lambda;
};

/// Nodes of a row, all of them when it has few.
template <int kRows>
struct Nodes {
  static constexpr int kChannels = kLightningGroups * kRows;
  static constexpr int kMost = kChannels > 128 ? 8 : 16;
  alignas(16) LightningVectors<kChannels, kMost> q, k, v;
};

/// Nodes [begin, begin + count) of the row into the places from 0 on, and their records. By the
/// whole block.
template <int kRows>
__device__ void fetch_nodes(const Verify& p, const DeviceRow& row, int64_t h, int begin, int count,
                            bool keeps, Nodes<kRows>& nodes) {
  constexpr int kChannels = Nodes<kRows>::kChannels;
  constexpr int kMost = Nodes<kRows>::kMost;
  constexpr int kThreads = 32 * kWarps;
  const LightningDevice& lightning = p.lightning;
  const DeviceView<3> nowhere{};
  const auto token_at = [&](int i) { return row.token_begin + begin + i; };
  __syncthreads();  // the ones before have been used
  stage_lightning<kChannels, kMost, kThreads>({lightning.k, keeps ? p.k : nowhere, 1.0f},
                                              lightning.D, count, h, token_at, nodes.k);
  stage_lightning<kChannels, kMost, kThreads>({lightning.v, keeps ? p.v : nowhere, 1.0f},
                                              lightning.D, count, h, token_at, nodes.v);
  stage_lightning<kChannels, kMost, kThreads>({lightning.q, nowhere, lightning.scale}, lightning.D,
                                              count, h, token_at, nodes.q);
  __syncthreads();
}

/// The state behind `node`, which is -1 for the committed one.
template <int kRows>
__device__ void rebuild_columns(const Verify& p, const DeviceRow& row, const Work& work,
                                const DeviceDraftTree& tree, int node, Nodes<kRows>& nodes,
                                LightningColumns<kRows>& S) {
  if (work.works) {
    load_lightning<kRows>(p.lightning, row.slot, work.h, work.first, row.fresh, S);
  }
  if (node < 0) return;
  const bool all = row.valid <= Nodes<kRows>::kMost;
  const int depth = tree.depth(node);
  for (int step = 0; step < depth; ++step) {
    const int at = tree.ancestor(node, depth - 1 - step);
    if (!all) fetch_nodes<kRows>(p, row, work.h, at, 1, false, nodes);
    if (!work.works) continue;
    float v[4];
    lightning_value(nodes.v[all ? at : 0], work.first, v);
    update_lightning<kRows>(nodes.k[all ? at : 0], v, work.lambda, S);
  }
}

/// Nodes in order on the warp's columns S, which hold the committed state.
template <int kRows>
__device__ void verify_columns(const Verify& p, const DeviceRow& row, const Work& work,
                               const DeviceDraftTree& tree, bool keeps, Nodes<kRows>& nodes,
                               LightningColumns<kRows>& S) {
  const bool all = row.valid <= Nodes<kRows>::kMost;
  int behind = -1;  // the node whose state the registers hold
  for (int node = 0; node < row.valid; ++node) {
    const int64_t t = row.token_begin + node;
    if (tree.inert(node)) {
      if (!all && keeps) fetch_nodes<kRows>(p, row, work.h, node, 1, true, nodes);
      if (work.works) clear_lightning_out(p.lightning, t, work.h, work.first);
      continue;
    }
    const int parent = tree.parent[node];
    if (parent != behind) rebuild_columns<kRows>(p, row, work, tree, parent, nodes, S);
    if (!all) fetch_nodes<kRows>(p, row, work.h, node, 1, keeps, nodes);
    behind = node;
    if (!work.works) continue;
    const int at = all ? node : 0;
    float v[4];
    float o[4];
    lightning_value(nodes.v[at], work.first, v);
    update_lightning<kRows>(nodes.k[at], v, work.lambda, S);
    read_lightning<kRows>(nodes.q[at], S, o);
    store_lightning_out(p.lightning, t, work.h, work.first, o);
  }
}

/// Task = (row, head, piece of V); row N is the tail behind all rows.
template <int kRows>
__global__ void __launch_bounds__(32 * kWarps, kRows > 16 ? 2 : 3)
    lightning_verify_kernel(const __grid_constant__ Verify p, LightningTasks tasks) {
  __shared__ DeviceDraftTree tree;
  __shared__ Nodes<kRows> nodes;
  const LightningDevice& lightning = p.lightning;
  uint32_t piece;
  uint32_t head;
  const uint32_t row_number = tasks.heads.divide(tasks.pieces.divide(blockIdx.x, piece), head);
  const int64_t n = row_number;
  const int64_t h = head;
  DeviceStatus* status = piece == 0 && h == 0 ? lightning.status : nullptr;
  const DeviceRow row = read_verify_row(lightning.rows, n, status);
  const int64_t first =
      (static_cast<int64_t>(piece) * kWarps + threadIdx.x / 32) * kLightningColumns;
  const Work work{h, first, first < lightning.D, lightning_decay(load_at(lightning.slopes, h), 1)};
  LightningColumns<kRows> S;
  if (row.valid > 0 && work.works) {
    load_lightning<kRows>(lightning, row.slot, h, first, row.fresh, S);
  }
  for (int64_t i = row.valid; work.works && i < row.tokens; ++i) {
    clear_lightning_out(lightning, row.token_begin + i, h, first);
  }
  if (row.valid == 0) return;
  fill_draft_tree(p.parent, row, n, status, tree);
  const auto count = static_cast<int>(row.valid);
  const bool keeps = piece == 0;
  if (count <= Nodes<kRows>::kMost) fetch_nodes<kRows>(p, row, h, 0, count, keeps, nodes);
  verify_columns<kRows>(p, row, work, tree, keeps, nodes, S);
}

}  // namespace

Status lightning_verify_cuda(const LightningVerifyParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const Verify p{lightning_device(params.lightning, context), device_view<3>(params.record.k),
                 device_view<3>(params.record.v), index_view(params.parent)};
  const int64_t pieces = ceil_div(p.lightning.D, kWarps * kLightningColumns);
  const int64_t rows = p.lightning.rows.count + 1;
  if (rows * p.lightning.H * pieces > kMostLightningTasks) {
    return Status(StatusCode::kUnsupported, "rows times heads exceed 2^31");
  }
  const LightningTasks tasks(rows, p.lightning.H, pieces);
  const Status status = with_lightning_rows(p.lightning.D, [&]<int kRows>() {
    return launch("lightning_verify", lightning_verify_kernel<kRows>, grid_of(tasks.count),
                  32 * kWarps, context, p, tasks);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.lightning.out);
}

}  // namespace linestate
