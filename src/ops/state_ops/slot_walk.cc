#include "ops/state_ops/slot_walk.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace linestate {

SlotWalk::SlotWalk(const ConstTensorView& dst, const ConstTensorView& src) {
  // Farthest dst stride first: writes go through memory in order, and the last is the run.
  const auto farther = [](const Dim& a, const Dim& b) {
    return std::pair(std::abs(a.dst), std::abs(a.src)) >
           std::pair(std::abs(b.dst), std::abs(b.src));
  };
  std::array<Dim, kDims> dims;
  size_t count = 0;
  for (int d = 1; d < dst.rank; ++d) {
    if (dst.shape[d] == 1) continue;
    const Dim dim{dst.shape[d], dst.stride[d], src.stride[d]};
    size_t at = count++;
    for (; at > 0 && farther(dim, dims[at - 1]); --at) dims[at] = dims[at - 1];
    dims[at] = dim;
  }
  size_t kept = 0;
  for (size_t d = 0; d < count; ++d) {
    Dim& outer = dims[kept == 0 ? 0 : kept - 1];
    const Dim inner = dims[d];
    if (kept > 0 && outer.dst == inner.dst * inner.size && outer.src == inner.src * inner.size) {
      outer = {outer.size * inner.size, inner.dst, inner.src};
    } else {
      dims[kept++] = inner;
    }
  }
  for (size_t d = 0; d < kept; ++d) dims_[kDims - kept + d] = dims[d];
  first_ = static_cast<int>(kDims - std::max<size_t>(kept, 1));
}

}  // namespace linestate
