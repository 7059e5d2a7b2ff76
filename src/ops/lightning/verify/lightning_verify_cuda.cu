// Verify on a GPU: columns of the state stay in registers while their nodes go by in order. A node
// that does not follow the one before it starts from the committed state again and takes the keys
// and values of its path; a chain never does. The state is only read.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/draft_tree/draft_tree_device.cuh"
#include "ops/lightning/lightning_lane_step.cuh"
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

__device__ void copy_bits(const DeviceView<3>& to, const DeviceView<3>& from, int64_t t, int64_t h,
                          int64_t c) {
  const int64_t at = to.offset(t, h, c);
  const int64_t source = from.offset(t, h, c);
  if (to.dtype == DType::kF32) {
    static_cast<uint32_t*>(to.data)[at] = static_cast<const uint32_t*>(from.data)[source];
  } else {
    static_cast<uint16_t*>(to.data)[at] = static_cast<const uint16_t*>(from.data)[source];
  }
}

/// The bits of k and v of the row's valid nodes.
__device__ void record_nodes(const Verify& p, const DeviceRow& row, int64_t h) {
  const int64_t D = p.lightning.D;
  for (int64_t i = threadIdx.x; i < row.valid * D; i += blockDim.x) {
    copy_bits(p.k, p.lightning.k, row.token_begin + i / D, h, i % D);
    copy_bits(p.v, p.lightning.v, row.token_begin + i / D, h, i % D);
  }
}

/// Token t for the whole block.
__device__ void fetch_node(const Verify& p, int64_t t, int64_t h, LightningToken& token) {
  __syncthreads();
  fetch_lightning_token(p.lightning, t, h, static_cast<int>(threadIdx.x), 32 * kWarps, token);
  __syncthreads();
}

/// The state behind `node`, which is -1 for the committed one.
template <int kRows>
__device__ void rebuild_columns(const Verify& p, const DeviceRow& row, const Work& work,
                                const DeviceDraftTree& tree, int node, LightningToken& token,
                                LightningColumns<kRows>& S) {
  if (work.works) {
    load_lightning<kRows>(p.lightning, row.slot, work.h, work.first, row.fresh, S);
  }
  if (node < 0) return;
  const int depth = tree.depth(node);
  for (int step = 0; step < depth; ++step) {
    const int64_t t = row.token_begin + tree.ancestor(node, depth - 1 - step);
    fetch_node(p, t, work.h, token);
    if (!work.works) continue;
    float v[4];
    lightning_value(token.v, work.first, v);
    update_lightning<kRows>(token.k, v, work.lambda, S);
  }
}

template <int kRows>
__device__ void verify_columns(const Verify& p, const DeviceRow& row, const Work& work,
                               const DeviceDraftTree& tree, LightningToken& token) {
  LightningColumns<kRows> S;
  int behind = -2;  // the node whose state the registers hold
  for (int node = 0; node < row.valid; ++node) {
    const int64_t t = row.token_begin + node;
    if (tree.inert(node)) {
      if (work.works) clear_lightning_out(p.lightning, t, work.h, work.first);
      continue;
    }
    const int parent = tree.parent[node];
    if (parent != behind) rebuild_columns<kRows>(p, row, work, tree, parent, token, S);
    fetch_node(p, t, work.h, token);
    behind = node;
    if (!work.works) continue;
    float o[4];
    step_lightning<kRows>(token, work.first, work.lambda, S, o);
    store_lightning_out(p.lightning, t, work.h, work.first, o);
  }
}

/// Task = (row, head, piece of V); row N is the tail behind all rows.
template <int kRows>
__global__ void __launch_bounds__(32 * kWarps)
    lightning_verify_kernel(const __grid_constant__ Verify p, int64_t pieces, int64_t tasks) {
  __shared__ DeviceDraftTree tree;
  __shared__ LightningToken token;
  const LightningDevice& lightning = p.lightning;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t piece = task % pieces;
    const int64_t h = task / pieces % lightning.H;
    const int64_t n = task / pieces / lightning.H;
    DeviceStatus* status = piece == 0 && h == 0 ? lightning.status : nullptr;
    const DeviceRow row = read_verify_row(lightning.rows, n, status);
    fill_draft_tree(p.parent, row, n, status, tree);
    if (piece == 0) record_nodes(p, row, h);
    const int64_t first = (piece * kWarps + threadIdx.x / 32) * kLightningColumns;
    const Work work{h, first, first < lightning.D,
                    lightning_decay(load_at(lightning.slopes, h), 1)};
    for (int64_t i = row.valid; work.works && i < row.tokens; ++i) {
      clear_lightning_out(lightning, row.token_begin + i, h, first);
    }
    verify_columns<kRows>(p, row, work, tree, token);
  }
}

}  // namespace

Status lightning_verify_cuda(const LightningVerifyParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const Verify p{lightning_device(params.lightning, context), device_view<3>(params.record.k),
                 device_view<3>(params.record.v), index_view(params.parent)};
  const int64_t pieces = ceil_div(p.lightning.D, kWarps * kLightningColumns);
  const int64_t tasks = (p.lightning.rows.count + 1) * p.lightning.H * pieces;
  const Status status = with_lightning_rows(p.lightning.D, [&]<int kRows>() {
    return launch("lightning_verify", lightning_verify_kernel<kRows>, grid_of(tasks), 32 * kWarps,
                  context, p, pieces, tasks);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.lightning.out);
}

}  // namespace linestate
