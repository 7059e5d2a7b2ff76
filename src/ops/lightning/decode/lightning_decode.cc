#include "ops/lightning/decode/lightning_decode_kernels.h"
#include "ops/lightning/lightning_check.h"

namespace linestate {

const OpTable<LightningParams>& lightning_decode_table() {
  static constexpr OpTable<LightningParams> kTable{"lightning_decode", kLightningDecodeRows,
                                                   check_lightning_decode};
  return kTable;
}

Status lightning_decode(const LightningParams& params, const ExecContext& context,
                        std::string_view kernel) {
  return run_op(lightning_decode_table(), params, context, kernel);
}

Result<int64_t> lightning_decode_workspace_bytes(const LightningParams& params,
                                                 const ExecContext& context,
                                                 std::string_view kernel) {
  return op_workspace_bytes(lightning_decode_table(), params, context, kernel);
}

KernelChoice explain_lightning_decode(const LightningParams& params, const ExecContext& context,
                                      std::string_view kernel) {
  return explain_op(lightning_decode_table(), params, context, kernel);
}

}  // namespace linestate
