#include "ops/kda/kda_check.h"
#include "ops/kda/prefill/kda_prefill_kernels.h"

namespace linestate {

const OpTable<KdaParams>& kda_prefill_table() {
  static constexpr OpTable<KdaParams> kTable{"kda_prefill", kKdaPrefillRows, check_kda_prefill};
  return kTable;
}

Status kda_prefill(const KdaParams& params, const ExecContext& context, std::string_view kernel) {
  return run_op(kda_prefill_table(), params, context, kernel);
}

Result<int64_t> kda_prefill_workspace_bytes(const KdaParams& params, const ExecContext& context,
                                            std::string_view kernel) {
  return op_workspace_bytes(kda_prefill_table(), params, context, kernel);
}

KernelChoice explain_kda_prefill(const KdaParams& params, const ExecContext& context,
                                 std::string_view kernel) {
  return explain_op(kda_prefill_table(), params, context, kernel);
}

}  // namespace linestate
