// Links point to later nodes, so when a node's turn comes its own parent is known.
#include <algorithm>

#include "base/element.h"
#include "cpu/parallel_for.h"
#include "ops/draft_tree/from_links/tree_from_links_kernels.h"

namespace linestate {

Status tree_from_links_cpu(const TreeFromLinksParams& params, const ExecContext& context) {
  const int64_t D = params.parent.shape[1];
  parallel_for(context, D == 0 ? 0 : params.parent.shape[0], [&](int64_t n, int) {
    const ConstTensorView child = params.first_child.select(0, n);
    const ConstTensorView sibling = params.next_sibling.select(0, n);
    int32_t* parent = static_cast<int32_t*>(params.parent.data) + n * D;
    std::fill(parent, parent + D, -1);
    for (int64_t i = 0; i < D; ++i) {
      if (i > 0 && parent[i] < 0) continue;  // not reached: what it names is not either
      const int64_t first = load_index(child, i);
      if (first >= 0) parent[first] = static_cast<int32_t>(i);
      const int64_t next = load_index(sibling, i);
      if (next >= 0) parent[next] = parent[i];
    }
  });
  return {};
}

}  // namespace linestate
