// Draft trees as verify and commit walk them on the CPU: parents, inert nodes, paths from the root.
// Follows include/linestate/ops/draft_tree.h. Nothing here allocates.
#pragma once

#include <array>
#include <cstdint>

#include "base/row_access.h"
#include "linestate/exec_context.h"
#include "linestate/ops/draft_tree.h"
#include "linestate/rows.h"
#include "linestate/status.h"

namespace linestate {

/// Node ids on the way from the root to a node, both included.
struct DraftPath {
  std::array<int16_t, kMaxVerifyNodes> node;
  int64_t length = 0;
};

/// The valid nodes of one row. A node whose path does not end at the root is inert, also when it
/// is the child of one that nobody names.
class DraftTree {
 public:
  /// REQUIRES: check_parents passed.
  DraftTree(const ConstTensorView& parent, const RowInfo& row);

  int64_t nodes() const { return nodes_; }
  /// -1 for the root. REQUIRES: node i is not inert.
  int64_t parent_of(int64_t i) const { return parent_[static_cast<size_t>(i)]; }
  bool inert(int64_t i) const { return parent_[static_cast<size_t>(i)] == kInert; }
  /// Tokens on the path of node i, itself included: 1 for the root. REQUIRES: not inert.
  int64_t depth(int64_t i) const;
  /// REQUIRES: node i is not inert.
  DraftPath path_to(int64_t i) const;

 private:
  static constexpr int16_t kInert = -2;
  std::array<int16_t, kMaxVerifyNodes> parent_;
  int64_t nodes_ = 0;
};

/// `parent` [T], or undefined, for rows that passed check_prefill_rows over P = num_slots: shape
/// and dtype, and on the CPU the values of the live rows' valid nodes (-1 for node 0,
/// -1 <= parent[i] < i behind it). Every row has at most kMaxVerifyNodes tokens.
Status check_parents(const ConstTensorView& parent, const RowTensors& rows, int64_t num_tokens,
                     int64_t num_slots, const ExecContext& context);

/// `accepted_node` [N]: on the CPU -1, or a valid node of the row that is not inert; padding rows
/// are not looked at. REQUIRES: check_parents passed.
Status check_accepted_nodes(const ConstTensorView& accepted_node, const ConstTensorView& parent,
                            const RowTensors& rows, int64_t num_slots, const ExecContext& context);

}  // namespace linestate
