#include "base/check.h"
#include "ops/common/snapshot_access.h"
#include "ops/draft_tree/draft_path.h"
#include "ops/kda/kda_check.h"
#include "ops/kda/kda_record.h"
#include "ops/kda/verify/kda_verify_kernels.h"

namespace linestate {
namespace {

Status check_memory(const KdaVerifyParams& params) {
  struct Named {
    const char* name;
    ConstTensorView tensor;
  };
  const KdaParams& p = params.kda;
  const bool gated = p.gate_form != KdaGate::kActivated;
  LINESTATE_RETURN_IF_ERROR(check_no_overlap("out", p.out, "parent", params.parent));
  for (const Named& other : {Named{"q", p.q},
                             {"k", p.k},
                             {"v", p.v},
                             {"gate", p.gate},
                             {"beta", p.beta},
                             {"A_log", gated ? p.A_log : ConstTensorView()},
                             {"dt_bias", gated ? p.dt_bias : ConstTensorView()},
                             {"rows.slot", p.rows.slot},
                             {"rows.query_start_loc", p.rows.query_start_loc},
                             {"rows.start", p.rows.start},
                             {"rows.num_valid", p.rows.num_valid},
                             {"state", p.state},
                             {"out", p.out},
                             {"parent", params.parent}}) {
    LINESTATE_RETURN_IF_ERROR(check_kda_record_apart(params.record, other.name, other.tensor));
  }
  return {};
}

Status check(const KdaVerifyParams& params, const ExecContext& context) {
  const KdaParams& p = params.kda;
  LINESTATE_RETURN_IF_ERROR(check_no_snapshots(p.snapshots));
  LINESTATE_RETURN_IF_ERROR(check_kda_prefill(p, context));
  const int64_t T = p.q.shape[0];
  const KdaRecordShape shape{T, p.q.shape[1], p.v.shape[1], p.q.shape[2], p.v.shape[2], p.k.dtype};
  LINESTATE_RETURN_IF_ERROR(check_kda_record(params.record, shape, context));
  LINESTATE_RETURN_IF_ERROR(check_parents(params.parent, p.rows, T, p.state.shape[0], context));
  return check_memory(params);
}

}  // namespace

const OpTable<KdaVerifyParams>& kda_verify_table() {
  static constexpr OpTable<KdaVerifyParams> kTable{"kda_verify", kKdaVerifyRows, check};
  return kTable;
}

Status kda_verify(const KdaVerifyParams& params, const ExecContext& context,
                  std::string_view kernel) {
  return run_op(kda_verify_table(), params, context, kernel);
}

Result<int64_t> kda_verify_workspace_bytes(const KdaVerifyParams& params,
                                           const ExecContext& context, std::string_view kernel) {
  return op_workspace_bytes(kda_verify_table(), params, context, kernel);
}

KernelChoice explain_kda_verify(const KdaVerifyParams& params, const ExecContext& context,
                                std::string_view kernel) {
  return explain_op(kda_verify_table(), params, context, kernel);
}

}  // namespace linestate
