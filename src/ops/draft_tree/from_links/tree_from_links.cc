#include <array>

#include "base/check.h"
#include "base/element.h"
#include "ops/draft_tree/from_links/tree_from_links_kernels.h"

namespace linestate {
namespace {

Status check_links(const char* name, const ConstTensorView& links, int64_t n,
                   std::array<bool, kMaxVerifyNodes>& named) {
  const ConstTensorView row = links.select(0, n);
  const int64_t D = row.shape[0];
  for (int64_t i = 0; i < D; ++i) {
    const int64_t target = load_index(row, i);
    if (target == -1) continue;
    if (target <= i || target >= D) {
      return invalid_argument(name, ": expected -1 or a node from ", i + 1, " to ", D - 1,
                              " for node ", i, " of row ", n, ", got ", target);
    }
    bool& seen = named[static_cast<size_t>(target)];
    if (seen) {
      return invalid_argument(name, ": expected every node to be named once, got node ", target,
                              " again at node ", i, " of row ", n);
    }
    seen = true;
  }
  return {};
}

Status check(const TreeFromLinksParams& p, const ExecContext& context) {
  struct Named {
    const char* name;
    const ConstTensorView& tensor;
  };
  const ConstTensorView parent = p.parent;
  LINESTATE_RETURN_IF_ERROR(check_shape("first_child", p.first_child, {kAnySize, kAnySize}));
  const int64_t N = p.first_child.shape[0];
  const int64_t D = p.first_child.shape[1];
  if (D > kMaxVerifyNodes) {
    return invalid_argument("first_child: expected at most ", kMaxVerifyNodes,
                            " nodes in a tree, got ", D);
  }
  LINESTATE_RETURN_IF_ERROR(check_shape("parent", parent, {N, D}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("parent", parent, {DType::kI32}));
  LINESTATE_RETURN_IF_ERROR(check_placement("parent", parent, context));
  if (!parent.contiguous()) {
    return invalid_argument("parent: expected contiguous memory, got ", describe(parent));
  }
  for (const Named& links :
       {Named{"first_child", p.first_child}, Named{"next_sibling", p.next_sibling}}) {
    LINESTATE_RETURN_IF_ERROR(check_shape(links.name, links.tensor, {N, D}));
    LINESTATE_RETURN_IF_ERROR(check_dtype(links.name, links.tensor, {DType::kI32, DType::kI64}));
    LINESTATE_RETURN_IF_ERROR(check_placement(links.name, links.tensor, context));
    LINESTATE_RETURN_IF_ERROR(check_no_overlap("parent", parent, links.name, links.tensor));
  }
  if (context.device.type != DeviceType::kCpu) return {};
  for (int64_t n = 0; n < N; ++n) {
    std::array<bool, kMaxVerifyNodes> named{};
    LINESTATE_RETURN_IF_ERROR(check_links("first_child", p.first_child, n, named));
    LINESTATE_RETURN_IF_ERROR(check_links("next_sibling", p.next_sibling, n, named));
  }
  return {};
}

}  // namespace

const OpTable<TreeFromLinksParams>& tree_from_links_table() {
  static constexpr OpTable<TreeFromLinksParams> kTable{"tree_from_links", kTreeFromLinksRows,
                                                       check};
  return kTable;
}

Status tree_from_links(const TreeFromLinksParams& params, const ExecContext& context,
                       std::string_view kernel) {
  return run_op(tree_from_links_table(), params, context, kernel);
}

KernelChoice explain_tree_from_links(const TreeFromLinksParams& params, const ExecContext& context,
                                     std::string_view kernel) {
  return explain_op(tree_from_links_table(), params, context, kernel);
}

}  // namespace linestate
