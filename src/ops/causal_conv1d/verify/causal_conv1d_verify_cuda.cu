// Draft tokens on a GPU: a thread makes the outputs of four channels of all nodes of a row, each
// behind its own path. The window is only read.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/causal_conv1d/conv_device.cuh"
#include "ops/causal_conv1d/verify/causal_conv1d_verify_kernels.h"
#include "ops/draft_tree/draft_tree_device.cuh"

namespace linestate {
namespace {

constexpr int kThreads = 128;

/// The W newest inputs on the way from the committed past over the root to the node.
template <int W>
__device__ void convolve_node(const ConvDevice& p, const ConvTaps<W>& taps, const DeviceRow& row,
                              const DeviceDraftTree& tree, int64_t node, ConvChannels c) {
  float in[W][kConvQuad];
  int64_t at = node;  // an ancestor, or behind the root -1, -2, ... for the window's columns
#pragma unroll
  for (int j = W - 1; j >= 0; --j) {
    if (at >= 0) {
      load_conv_input(p, row.token_begin + at, c, in[j]);
      at = tree.parent[at];
    } else {
      load_conv_past(p, row, W - 1 + at, c, in[j]);
      --at;
    }
  }
  store_conv_token<W>(p, taps, row.token_begin + node, c, in);
}

template <int W>
__global__ void __launch_bounds__(kThreads)
    conv_verify_kernel(const __grid_constant__ ConvDevice p, IndexView parent, int64_t blocks,
                       int64_t tasks) {
  __shared__ DeviceDraftTree tree;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t n = task / blocks;
    const int64_t quad = task % blocks * kThreads + threadIdx.x;
    DeviceStatus* status = task % blocks == 0 ? p.status : nullptr;
    const DeviceRow row = read_verify_row(p.rows, n, status);
    fill_draft_tree(parent, row, n, status, tree);
    if (quad * kConvQuad >= p.channels) continue;
    const ConvChannels c = conv_channels(p, quad);
    const ConvTaps<W> taps = load_conv_taps<W>(p, c);
    for (int64_t node = 0; node < row.tokens; ++node) {
      if (node < row.valid && !tree.inert(node)) {
        convolve_node<W>(p, taps, row, tree, node, c);
      } else {
        clear_conv_token(p, row.token_begin + node, c);
      }
    }
  }
}

}  // namespace

Status causal_conv1d_verify_cuda(const CausalConv1dVerifyParams& params,
                                 const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const ConvDevice p = conv_device(params.conv, context);
  const int64_t blocks = ceil_div(p.channels, kThreads * kConvQuad);
  const int64_t tasks = (p.rows.count + 1) * blocks;
  const Status status = with_conv_width(p.width, [&]<int W>() {
    return launch("causal_conv1d_verify", conv_verify_kernel<W>, grid_of(tasks), kThreads, context,
                  p, index_view(params.parent), blocks, tasks);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.conv.out);
}

}  // namespace linestate
