#include "ops/draft_tree/draft_path.h"

#include "base/check.h"

namespace linestate {
namespace {

Status check_row_parents(const ConstTensorView& parent, const RowInfo& row, int64_t n) {
  for (int64_t i = 0; i < row.valid; ++i) {
    const int64_t id = load_index(parent, row.token_begin + i);
    if (id < i && id >= -1) continue;
    return invalid_argument("parent: expected -1 to ", i - 1, " for node ", i, " of row ", n,
                            ", got ", id);
  }
  return {};
}

}  // namespace

DraftTree::DraftTree(const ConstTensorView& parent, const RowInfo& row) : nodes_(row.valid) {
  for (int64_t i = 0; i < nodes_; ++i) {
    const int64_t id = parent.defined() ? load_index(parent, row.token_begin + i) : i - 1;
    const bool reached = i == 0 || (id >= 0 && !inert(id));
    parent_[static_cast<size_t>(i)] = reached ? static_cast<int16_t>(id) : kInert;
  }
}

int64_t DraftTree::depth(int64_t i) const {
  int64_t tokens = 0;
  for (; i >= 0; i = parent_of(i)) ++tokens;
  return tokens;
}

DraftPath DraftTree::path_to(int64_t i) const {
  DraftPath path;
  path.length = depth(i);
  for (int64_t at = path.length; at > 0; i = parent_of(i)) {
    path.node[static_cast<size_t>(--at)] = static_cast<int16_t>(i);
  }
  return path;
}

Status check_parents(const ConstTensorView& parent, const RowTensors& rows, int64_t num_tokens,
                     int64_t num_slots, const ExecContext& context) {
  if (parent.defined()) {
    LINESTATE_RETURN_IF_ERROR(check_shape("parent", parent, {num_tokens}));
    LINESTATE_RETURN_IF_ERROR(check_dtype("parent", parent, {DType::kI32, DType::kI64}));
    LINESTATE_RETURN_IF_ERROR(check_placement("parent", parent, context));
  }
  if (context.device.type != DeviceType::kCpu) return {};
  for (int64_t n = 0; n < rows.slot.shape[0]; ++n) {
    const RowInfo row = read_prefill_row(rows, n, num_slots);
    if (row.tokens > kMaxVerifyNodes) {
      return invalid_argument("rows.query_start_loc: expected at most ", kMaxVerifyNodes,
                              " draft tokens in a row, got ", row.tokens, " at row ", n);
    }
    if (parent.defined()) LINESTATE_RETURN_IF_ERROR(check_row_parents(parent, row, n));
  }
  return {};
}

Status check_accepted_nodes(const ConstTensorView& accepted_node, const ConstTensorView& parent,
                            const RowTensors& rows, int64_t num_slots, const ExecContext& context) {
  const int64_t N = rows.slot.shape[0];
  LINESTATE_RETURN_IF_ERROR(check_shape("accepted_node", accepted_node, {N}));
  LINESTATE_RETURN_IF_ERROR(
      check_dtype("accepted_node", accepted_node, {DType::kI32, DType::kI64}));
  LINESTATE_RETURN_IF_ERROR(check_placement("accepted_node", accepted_node, context));
  if (context.device.type != DeviceType::kCpu) return {};
  for (int64_t n = 0; n < N; ++n) {
    const RowInfo row = read_prefill_row(rows, n, num_slots);
    const int64_t node = load_index(accepted_node, n);
    if (!row.live || node == -1) continue;
    if (node < 0 || node >= row.valid) {
      return invalid_argument("accepted_node: expected -1 or one of the ", row.valid,
                              " valid nodes, got ", node, " at row ", n);
    }
    if (DraftTree(parent, row).inert(node)) {
      return invalid_argument("accepted_node: expected a node that the root reaches, got inert ",
                              node, " at row ", n);
    }
  }
  return {};
}

}  // namespace linestate
