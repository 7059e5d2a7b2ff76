// C++ values as C ones, for kernels written in C and for what the library hands out.
#pragma once

#include <vector>

#include "capi/reader.h"

namespace linestate::capi {

ls_context to_c(const ExecContext& context);
ls_rows to_c(const RowTensors& rows);
ls_snapshot_plan to_c(const SnapshotPlan& plan);
ls_kda_record to_c(const KdaRecord& record);
ls_lightning_record to_c(const LightningRecord& record);
ls_replay_ring to_c(const ReplayRing& ring);

/// The C struct of an operator's Params, `c`, and what it points to.
template <typename Params>
struct Outgoing;

#define LS_OUTGOING(Params, CParams, ...)          \
  template <>                                      \
  struct Outgoing<Params> {                        \
    explicit Outgoing(const Params& params);       \
    Outgoing(const Outgoing&) = delete;            \
    Outgoing& operator=(const Outgoing&) = delete; \
    __VA_ARGS__                                    \
    CParams c{};                                   \
  };

LS_OUTGOING(CausalConv1dParams, ls_causal_conv1d_params, ls_rows rows; ls_snapshot_plan plan;)
LS_OUTGOING(CausalConv1dVerifyParams, ls_causal_conv1d_verify_params,
            Outgoing<CausalConv1dParams> conv;)
LS_OUTGOING(KdaParams, ls_kda_params, ls_rows rows; ls_snapshot_plan plan;)
LS_OUTGOING(KdaVerifyParams, ls_kda_verify_params, Outgoing<KdaParams> kda; ls_kda_record record;)
LS_OUTGOING(KdaCommitParams, ls_kda_commit_params, ls_rows rows; ls_snapshot_plan plan;
            ls_kda_record record;)
LS_OUTGOING(KdaReplayParams, ls_kda_replay_params, Outgoing<KdaParams> kda; ls_replay_ring ring;)
LS_OUTGOING(LightningParams, ls_lightning_params, ls_rows rows; ls_snapshot_plan plan;)
LS_OUTGOING(LightningVerifyParams, ls_lightning_verify_params, Outgoing<LightningParams> lightning;
            ls_lightning_record record;)
LS_OUTGOING(LightningCommitParams, ls_lightning_commit_params, ls_rows rows; ls_snapshot_plan plan;
            ls_lightning_record record;)
LS_OUTGOING(LightningReplayParams, ls_lightning_replay_params, Outgoing<LightningParams> lightning;
            ls_replay_ring ring;)
LS_OUTGOING(GatedRmsNormParams, ls_gated_rms_norm_params, )
LS_OUTGOING(GroupRmsNormParams, ls_group_rms_norm_params, )
LS_OUTGOING(RmsSumSqParams, ls_rms_sum_sq_params, )
LS_OUTGOING(TreeFromLinksParams, ls_tree_from_links_params, )
LS_OUTGOING(StateClearParams, ls_state_clear_params, std::vector<ls_tensor> planes;)
LS_OUTGOING(StateCopyParams, ls_state_copy_params, std::vector<ls_tensor> src;
            std::vector<ls_tensor> dst;)
LS_OUTGOING(ReplayStepParams, ls_replay_step_params, ls_rows rows;)
LS_OUTGOING(ReplayFoldParams, ls_replay_fold_params, std::vector<ls_replay_ring> rings;
            std::vector<ls_replay_fold_layer> layers;)

#undef LS_OUTGOING

}  // namespace linestate::capi
