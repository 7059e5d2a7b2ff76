// A thread a tree. Links point to later nodes, so when a node's turn comes its own parent is known.
#include "base/int_math.h"
#include "cuda/device_flags.cuh"
#include "cuda/device_view.cuh"
#include "cuda/launch.cuh"
#include "ops/draft_tree/from_links/tree_from_links_kernels.h"

namespace linestate {
namespace {

constexpr int kThreads = 64;

struct Links {
  DeviceView<2> first_child, next_sibling;
  bool wide_child, wide_sibling;
  int32_t* parent;  // [N, D]
  int64_t N, D;
  DeviceStatus* status;
};

__device__ int64_t link_of(const DeviceView<2>& links, bool wide, int64_t n, int64_t i) {
  const int64_t at = links.offset(n, i);
  if (wide) return static_cast<const int64_t*>(links.data)[at];
  return static_cast<const int32_t*>(links.data)[at];
}

/// A link that points nowhere useful is dropped and flagged: -1 is none.
__device__ int64_t sound_link(const Links& p, int64_t link, int64_t n, int64_t i) {
  if (link > i && link < p.D) return link;
  if (link != -1) raise_flag(p.status, DeviceFlag::kBadParent, n);
  return -1;
}

__global__ void __launch_bounds__(kThreads)
    tree_from_links_kernel(const __grid_constant__ Links p, int64_t blocks) {
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t n = block * kThreads + threadIdx.x;
    if (n >= p.N) continue;
    int32_t* parent = p.parent + n * p.D;
    for (int64_t i = 0; i < p.D; ++i) parent[i] = -1;
    for (int64_t i = 0; i < p.D; ++i) {
      const int64_t child = sound_link(p, link_of(p.first_child, p.wide_child, n, i), n, i);
      const int64_t next = sound_link(p, link_of(p.next_sibling, p.wide_sibling, n, i), n, i);
      if (i > 0 && parent[i] < 0) continue;  // not reached: what it names is not either
      if (child >= 0) parent[child] = static_cast<int32_t>(i);
      if (next >= 0) parent[next] = parent[i];
    }
  }
}

}  // namespace

Status tree_from_links_cuda(const TreeFromLinksParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const Links p{device_view<2>(params.first_child),
                device_view<2>(params.next_sibling),
                params.first_child.dtype == DType::kI64,
                params.next_sibling.dtype == DType::kI64,
                static_cast<int32_t*>(params.parent.data),
                params.parent.shape[0],
                params.parent.shape[1],
                context.status};
  const int64_t blocks = p.D == 0 ? 0 : ceil_div(p.N, kThreads);
  return launch("tree_from_links", tree_from_links_kernel, grid_of(blocks), kThreads, context, p,
                blocks);
}

}  // namespace linestate
