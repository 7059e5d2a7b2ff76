#include <array>

#include "base/check.h"
#include "ops/common/snapshot_access.h"
#include "ops/draft_tree/accepted_path.h"
#include "ops/draft_tree/draft_path.h"
#include "ops/lightning/lightning_check.h"

namespace linestate {
namespace {

struct Named {
  const char* name;
  ConstTensorView tensor;
};

Status check_record(const LightningRecord& record, int64_t tokens, int64_t heads, int64_t dim,
                    const ExecContext& context) {
  for (const Named& part : {Named{"record.k", record.k}, Named{"record.v", record.v}}) {
    LINESTATE_RETURN_IF_ERROR(check_shape(part.name, part.tensor, {tokens, heads, dim}));
    LINESTATE_RETURN_IF_ERROR(check_compute_dtype(part.name, part.tensor));
    LINESTATE_RETURN_IF_ERROR(check_placement(part.name, part.tensor, context));
    if (!part.tensor.contiguous()) {
      return invalid_argument(part.name, ": expected contiguous memory, got ",
                              describe(part.tensor));
    }
  }
  return check_dtype("record.v", record.v, {record.k.dtype});
}

// Every tensor that the call only reads, besides those of a plan.
template <size_t N>
Status check_apart(const Named& output, const std::array<Named, N>& inputs) {
  for (const Named& input : inputs) {
    LINESTATE_RETURN_IF_ERROR(
        check_no_overlap(output.name, output.tensor, input.name, input.tensor));
  }
  return {};
}

Status check_verify_memory(const LightningVerifyParams& params) {
  const LightningParams& lightning = params.lightning;
  const std::array<Named, 11> others = {{{"q", lightning.q},
                                         {"k", lightning.k},
                                         {"v", lightning.v},
                                         {"slopes", lightning.slopes},
                                         {"rows.slot", lightning.rows.slot},
                                         {"rows.query_start_loc", lightning.rows.query_start_loc},
                                         {"rows.start", lightning.rows.start},
                                         {"rows.num_valid", lightning.rows.num_valid},
                                         {"parent", params.parent},
                                         {"state", lightning.state},
                                         {"out", lightning.out}}};
  LINESTATE_RETURN_IF_ERROR(check_apart({"record.k", params.record.k}, others));
  LINESTATE_RETURN_IF_ERROR(check_apart({"record.v", params.record.v}, others));
  LINESTATE_RETURN_IF_ERROR(
      check_no_overlap("record.k", params.record.k, "record.v", params.record.v));
  return check_no_overlap("out", lightning.out, "parent", params.parent);
}

Status check_commit_tensors(const LightningCommitParams& params, const ExecContext& context) {
  const ConstTensorView k = params.record.k;
  LINESTATE_RETURN_IF_ERROR(check_shape("record.k", k, {kAnySize, kAnySize, kAnySize}));
  const int64_t heads = k.shape[1];
  const int64_t dim = k.shape[2];
  if (heads < 1) return invalid_argument("record.k: expected at least 1 head, got ", describe(k));
  LINESTATE_RETURN_IF_ERROR(check_head_dim("record.k: head dimension D", dim));
  LINESTATE_RETURN_IF_ERROR(check_record(params.record, k.shape[0], heads, dim, context));
  LINESTATE_RETURN_IF_ERROR(check_lightning_slopes(params.slopes, heads, context));
  LINESTATE_RETURN_IF_ERROR(check_shape("state", params.state, {kAnySize, heads, dim, dim}));
  LINESTATE_RETURN_IF_ERROR(check_compute_dtype("state", params.state));
  LINESTATE_RETURN_IF_ERROR(check_placement("state", params.state, context));
  return check_no_self_overlap("state", params.state);
}

Status check_commit_memory(const LightningCommitParams& params) {
  const std::array<Named, 9> inputs = {{{"record.k", params.record.k},
                                        {"record.v", params.record.v},
                                        {"slopes", params.slopes},
                                        {"rows.slot", params.rows.slot},
                                        {"rows.query_start_loc", params.rows.query_start_loc},
                                        {"rows.start", params.rows.start},
                                        {"rows.num_valid", params.rows.num_valid},
                                        {"parent", params.parent},
                                        {"accepted_node", params.accepted_node}}};
  for (const Named& output : {Named{"state", params.state}, Named{"taken", params.taken}}) {
    LINESTATE_RETURN_IF_ERROR(check_apart(output, inputs));
    LINESTATE_RETURN_IF_ERROR(check_snapshots_apart(params.snapshots, output.name, output.tensor));
  }
  return check_no_overlap("state", params.state, "taken", params.taken);
}

}  // namespace

Status check_lightning_verify(const LightningVerifyParams& params, const ExecContext& context) {
  const LightningParams& lightning = params.lightning;
  LINESTATE_RETURN_IF_ERROR(check_lightning_tensors(lightning, context));
  LINESTATE_RETURN_IF_ERROR(check_no_snapshots(lightning.snapshots));
  const int64_t tokens = lightning.q.shape[0];
  const int64_t slots = lightning.state.shape[0];
  LINESTATE_RETURN_IF_ERROR(
      check_record(params.record, tokens, lightning.q.shape[1], lightning.q.shape[2], context));
  LINESTATE_RETURN_IF_ERROR(check_dtype("record.k", params.record.k, {lightning.k.dtype}));
  LINESTATE_RETURN_IF_ERROR(check_verify_memory(params));
  LINESTATE_RETURN_IF_ERROR(check_prefill_rows(lightning.rows, tokens, slots, context));
  return check_parents(params.parent, lightning.rows, tokens, slots, context);
}

Status check_lightning_commit(const LightningCommitParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_commit_tensors(params, context));
  const int64_t tokens = params.record.k.shape[0];
  const int64_t slots = params.state.shape[0];
  LINESTATE_RETURN_IF_ERROR(check_prefill_rows(params.rows, tokens, slots, context));
  LINESTATE_RETURN_IF_ERROR(check_parents(params.parent, params.rows, tokens, slots, context));
  LINESTATE_RETURN_IF_ERROR(
      check_accepted_nodes(params.accepted_node, params.parent, params.rows, slots, context));
  LINESTATE_RETURN_IF_ERROR(check_snapshots(params.snapshots, params.rows, slots, context));
  LINESTATE_RETURN_IF_ERROR(check_taken(params.taken, params.snapshots, context));
  return check_commit_memory(params);
}

}  // namespace linestate
