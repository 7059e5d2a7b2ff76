#include "ops/kda/decode/kda_decode_kernels.h"
#include "ops/kda/kda_check.h"

namespace linestate {

const OpTable<KdaParams>& kda_decode_table() {
  static constexpr OpTable<KdaParams> kTable{"kda_decode", kKdaDecodeRows, check_kda_decode};
  return kTable;
}

Status kda_decode(const KdaParams& params, const ExecContext& context, std::string_view kernel) {
  return run_op(kda_decode_table(), params, context, kernel);
}

Result<int64_t> kda_decode_workspace_bytes(const KdaParams& params, const ExecContext& context,
                                           std::string_view kernel) {
  return op_workspace_bytes(kda_decode_table(), params, context, kernel);
}

KernelChoice explain_kda_decode(const KdaParams& params, const ExecContext& context,
                                std::string_view kernel) {
  return explain_op(kda_decode_table(), params, context, kernel);
}

}  // namespace linestate
