#include "ops/lightning/lightning_check.h"
#include "ops/lightning/verify/lightning_verify_kernels.h"

namespace linestate {

const OpTable<LightningVerifyParams>& lightning_verify_table() {
  static constexpr OpTable<LightningVerifyParams> kTable{"lightning_verify", kLightningVerifyRows,
                                                         check_lightning_verify};
  return kTable;
}

Status lightning_verify(const LightningVerifyParams& params, const ExecContext& context,
                        std::string_view kernel) {
  return run_op(lightning_verify_table(), params, context, kernel);
}

Result<int64_t> lightning_verify_workspace_bytes(const LightningVerifyParams& params,
                                                 const ExecContext& context,
                                                 std::string_view kernel) {
  return op_workspace_bytes(lightning_verify_table(), params, context, kernel);
}

KernelChoice explain_lightning_verify(const LightningVerifyParams& params,
                                      const ExecContext& context, std::string_view kernel) {
  return explain_op(lightning_verify_table(), params, context, kernel);
}

}  // namespace linestate
