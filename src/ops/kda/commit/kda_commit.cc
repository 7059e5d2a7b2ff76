#include "base/check.h"
#include "ops/common/snapshot_access.h"
#include "ops/draft_tree/accepted_path.h"
#include "ops/kda/commit/kda_commit_kernels.h"
#include "ops/kda/kda_record.h"

namespace linestate {
namespace {

Status check_sizes(const KdaCommitParams& p, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_shape("record.u", p.record.u, {kAnySize, kAnySize, kAnySize}));
  LINESTATE_RETURN_IF_ERROR(check_shape("record.k", p.record.k, {kAnySize, kAnySize, kAnySize}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("record.k", p.record.k));
  const KdaRecordShape shape{p.record.u.shape[0], p.record.k.shape[1], p.record.u.shape[1],
                             p.record.k.shape[2], p.record.u.shape[2], p.record.k.dtype};
  LINESTATE_RETURN_IF_ERROR(check_head_dim("record.k: K", shape.K));
  LINESTATE_RETURN_IF_ERROR(check_head_dim("record.u: V", shape.V));
  if (shape.H < 1 || shape.HV < 1 || shape.HV % shape.H != 0) {
    return invalid_argument("record.u: expected a multiple of the ", shape.H,
                            " heads of record.k, got ", shape.HV, " value heads");
  }
  LINESTATE_RETURN_IF_ERROR(check_kda_record(p.record, shape, context));
  LINESTATE_RETURN_IF_ERROR(check_shape("state", p.state, {kAnySize, shape.HV, shape.V, shape.K}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("state", p.state));
  LINESTATE_RETURN_IF_ERROR(check_placement("state", p.state, context));
  return check_no_self_overlap("state", p.state);
}

Status check_window(const KdaCommitParams& p, const ExecContext& context) {
  if (p.conv_x.defined() != p.window.defined()) {
    return invalid_argument("window: expected to be given exactly when conv_x is, got ",
                            p.window.defined() ? "only window" : "only conv_x");
  }
  if (!p.window.defined()) return {};
  LINESTATE_RETURN_IF_ERROR(check_shape("conv_x", p.conv_x, {p.record.u.shape[0], kAnySize}));
  LINESTATE_RETURN_IF_ERROR(
      check_shape("window", p.window, {p.state.shape[0], p.conv_x.shape[1], kAnySize}));
  const int64_t width = p.window.shape[2] + 1;
  if (width < 2 || width > 4) {
    return invalid_argument("window: expected 1 to 3 inputs, got ", describe(p.window));
  }
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("conv_x", p.conv_x));
  LINESTATE_RETURN_IF_ERROR(check_dtype("window", p.window, {p.conv_x.dtype, DType::kF32}));
  LINESTATE_RETURN_IF_ERROR(check_placement("conv_x", p.conv_x, context));
  LINESTATE_RETURN_IF_ERROR(check_placement("window", p.window, context));
  return check_no_self_overlap("window", p.window);
}

Status check_memory(const KdaCommitParams& p) {
  struct Named {
    const char* name;
    ConstTensorView tensor;
  };
  const Named outputs[] = {{"state", p.state}, {"window", p.window}, {"taken", p.taken}};
  for (const Named& output : outputs) {
    if (!output.tensor.defined()) continue;
    LINESTATE_RETURN_IF_ERROR(check_kda_record_apart(p.record, output.name, output.tensor));
    LINESTATE_RETURN_IF_ERROR(check_snapshots_apart(p.snapshots, output.name, output.tensor));
    for (const Named& input : {Named{"conv_x", p.conv_x},
                               {"accepted_node", p.accepted_node},
                               {"parent", p.parent},
                               {"rows.slot", p.rows.slot},
                               {"rows.query_start_loc", p.rows.query_start_loc},
                               {"rows.start", p.rows.start},
                               {"rows.num_valid", p.rows.num_valid}}) {
      LINESTATE_RETURN_IF_ERROR(
          check_no_overlap(output.name, output.tensor, input.name, input.tensor));
    }
    for (const Named& other : outputs) {
      if (other.name == output.name) break;
      LINESTATE_RETURN_IF_ERROR(
          check_no_overlap(output.name, output.tensor, other.name, other.tensor));
    }
  }
  return {};
}

Status check(const KdaCommitParams& p, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_sizes(p, context));
  LINESTATE_RETURN_IF_ERROR(check_window(p, context));
  const int64_t T = p.record.u.shape[0];
  const int64_t num_slots = p.state.shape[0];
  LINESTATE_RETURN_IF_ERROR(check_prefill_rows(p.rows, T, num_slots, context));
  LINESTATE_RETURN_IF_ERROR(check_parents(p.parent, p.rows, T, num_slots, context));
  LINESTATE_RETURN_IF_ERROR(
      check_accepted_nodes(p.accepted_node, p.parent, p.rows, num_slots, context));
  LINESTATE_RETURN_IF_ERROR(check_snapshots(p.snapshots, p.rows, num_slots, context));
  LINESTATE_RETURN_IF_ERROR(check_taken(p.taken, p.snapshots, context));
  return check_memory(p);
}

}  // namespace

const OpTable<KdaCommitParams>& kda_commit_table() {
  static constexpr OpTable<KdaCommitParams> kTable{"kda_commit", kKdaCommitRows, check};
  return kTable;
}

Status kda_commit(const KdaCommitParams& params, const ExecContext& context,
                  std::string_view kernel) {
  return run_op(kda_commit_table(), params, context, kernel);
}

Result<int64_t> kda_commit_workspace_bytes(const KdaCommitParams& params,
                                           const ExecContext& context, std::string_view kernel) {
  return op_workspace_bytes(kda_commit_table(), params, context, kernel);
}

KernelChoice explain_kda_commit(const KdaCommitParams& params, const ExecContext& context,
                                std::string_view kernel) {
  return explain_op(kda_commit_table(), params, context, kernel);
}

}  // namespace linestate
