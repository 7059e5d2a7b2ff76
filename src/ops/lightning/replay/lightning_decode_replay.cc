#include "ops/lightning/lightning_check.h"
#include "ops/lightning/replay/lightning_decode_replay_kernels.h"

namespace linestate {

const OpTable<LightningReplayParams>& lightning_decode_replay_table() {
  static constexpr OpTable<LightningReplayParams> kTable{
      "lightning_decode_replay", kLightningReplayRows, check_lightning_replay};
  return kTable;
}

Status lightning_decode_replay(const LightningReplayParams& params, const ExecContext& context,
                               std::string_view kernel) {
  return run_op(lightning_decode_replay_table(), params, context, kernel);
}

Result<int64_t> lightning_decode_replay_workspace_bytes(const LightningReplayParams& params,
                                                        const ExecContext& context,
                                                        std::string_view kernel) {
  return op_workspace_bytes(lightning_decode_replay_table(), params, context, kernel);
}

KernelChoice explain_lightning_decode_replay(const LightningReplayParams& params,
                                             const ExecContext& context, std::string_view kernel) {
  return explain_op(lightning_decode_replay_table(), params, context, kernel);
}

}  // namespace linestate
