#include "ops/lightning/commit/lightning_commit_kernels.h"
#include "ops/lightning/lightning_check.h"

namespace linestate {

const OpTable<LightningCommitParams>& lightning_commit_table() {
  static constexpr OpTable<LightningCommitParams> kTable{"lightning_commit", kLightningCommitRows,
                                                         check_lightning_commit};
  return kTable;
}

Status lightning_commit(const LightningCommitParams& params, const ExecContext& context,
                        std::string_view kernel) {
  return run_op(lightning_commit_table(), params, context, kernel);
}

Result<int64_t> lightning_commit_workspace_bytes(const LightningCommitParams& params,
                                                 const ExecContext& context,
                                                 std::string_view kernel) {
  return op_workspace_bytes(lightning_commit_table(), params, context, kernel);
}

KernelChoice explain_lightning_commit(const LightningCommitParams& params,
                                      const ExecContext& context, std::string_view kernel) {
  return explain_op(lightning_commit_table(), params, context, kernel);
}

}  // namespace linestate
