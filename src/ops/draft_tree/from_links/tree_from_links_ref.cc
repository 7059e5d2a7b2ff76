// The definition in include/linestate/ops/draft_tree.h, node by node.
#include "base/element.h"
#include "cpu/parallel_for.h"
#include "ops/draft_tree/from_links/tree_from_links_kernels.h"

namespace linestate {
namespace {

// The node whose link is `node`, or -1.
int64_t namer_of(const ConstTensorView& links, int64_t n, int64_t node) {
  for (int64_t i = 0; i < node; ++i) {
    if (load_index(links.select(0, n), i) == node) return i;
  }
  return -1;
}

int64_t parent_of(const TreeFromLinksParams& params, int64_t n, int64_t node) {
  int64_t elder = node;  // back to the eldest of the siblings
  while (namer_of(params.next_sibling, n, elder) >= 0) {
    elder = namer_of(params.next_sibling, n, elder);
  }
  return namer_of(params.first_child, n, elder);
}

bool reached(const TreeFromLinksParams& params, int64_t n, int64_t node) {
  while (node > 0) node = parent_of(params, n, node);
  return node == 0;
}

}  // namespace

Status tree_from_links_ref(const TreeFromLinksParams& params, const ExecContext& context) {
  const int64_t D = params.parent.shape[1];
  parallel_for(context, D == 0 ? 0 : params.parent.shape[0], [&](int64_t n, int) {
    int32_t* parent = static_cast<int32_t*>(params.parent.data) + n * D;
    for (int64_t i = 0; i < D; ++i) {
      const int64_t up = parent_of(params, n, i);
      parent[i] = up >= 0 && reached(params, n, up) ? static_cast<int32_t>(up) : -1;
    }
  });
  return {};
}

}  // namespace linestate
