// Draft trees of speculative decoding, as verify and commit read them.
//
// The drafts of a row are its tokens; node i is the row's i-th token. `parent` holds, for every
// packed token, the parent's node id within the row: -1 for node 0 (the root, which follows the
// committed state) and parent[i] < i for the others. A node i > 0 with parent -1 is named by
// nobody: it is inert, its output is zero and it cannot be accepted. A chain is parent[i] = i - 1;
// an undefined `parent` means that every row is a chain.
#pragma once

#include <cstdint>
#include <string_view>

#include "linestate/exec_context.h"
#include "linestate/kernel_info.h"
#include "linestate/rows.h"
#include "linestate/status.h"

namespace linestate {

/// Most draft tokens (nodes) of one verify row.
inline constexpr int64_t kMaxVerifyNodes = 256;

/// Engines describe a tree by links: first child and next sibling of every node, -1 = none.
struct TreeFromLinksParams {
  ConstTensorView first_child;   // [N, D] i32 | i64, node id of the first child, > the node's own
  ConstTensorView next_sibling;  // [N, D] i32 | i64, node id of the next sibling, > the node's own
  TensorView parent;             // [N, D] i32, contiguous, so that it is also [N * D] packed
};

/// parent[n, 0] = -1; the child that a node names gets that node, and a sibling gets its elder's
/// parent; nodes that nobody reaches from the root get -1.
/// Errors on the CPU: kInvalidArgument for a link outside (node, D), or a node named twice.
Status tree_from_links(const TreeFromLinksParams& params, const ExecContext& context,
                       std::string_view kernel = kAutoKernel);
KernelChoice explain_tree_from_links(const TreeFromLinksParams& params, const ExecContext& context,
                                     std::string_view kernel = kAutoKernel);

}  // namespace linestate
