#include "ops/lightning/lightning_check.h"
#include "ops/lightning/prefill/lightning_prefill_kernels.h"

namespace linestate {

const OpTable<LightningParams>& lightning_prefill_table() {
  static constexpr OpTable<LightningParams> kTable{"lightning_prefill", kLightningPrefillRows,
                                                   check_lightning_prefill};
  return kTable;
}

Status lightning_prefill(const LightningParams& params, const ExecContext& context,
                         std::string_view kernel) {
  return run_op(lightning_prefill_table(), params, context, kernel);
}

Result<int64_t> lightning_prefill_workspace_bytes(const LightningParams& params,
                                                  const ExecContext& context,
                                                  std::string_view kernel) {
  return op_workspace_bytes(lightning_prefill_table(), params, context, kernel);
}

KernelChoice explain_lightning_prefill(const LightningParams& params, const ExecContext& context,
                                       std::string_view kernel) {
  return explain_op(lightning_prefill_table(), params, context, kernel);
}

}  // namespace linestate
