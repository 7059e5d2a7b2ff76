// One read() per operator: its C struct into its C++ Params, member by member.
#pragma once

#include "capi/reader.h"

namespace linestate::capi {

void read(Reader& reader, const ls_causal_conv1d_params* in, CausalConv1dParams* out);
void read(Reader& reader, const ls_causal_conv1d_verify_params* in, CausalConv1dVerifyParams* out);
void read(Reader& reader, const ls_kda_params* in, KdaParams* out);
void read(Reader& reader, const ls_kda_verify_params* in, KdaVerifyParams* out);
void read(Reader& reader, const ls_kda_commit_params* in, KdaCommitParams* out);
void read(Reader& reader, const ls_kda_replay_params* in, KdaReplayParams* out);
void read(Reader& reader, const ls_lightning_params* in, LightningParams* out);
void read(Reader& reader, const ls_lightning_verify_params* in, LightningVerifyParams* out);
void read(Reader& reader, const ls_lightning_commit_params* in, LightningCommitParams* out);
void read(Reader& reader, const ls_lightning_replay_params* in, LightningReplayParams* out);
void read(Reader& reader, const ls_gated_rms_norm_params* in, GatedRmsNormParams* out);
void read(Reader& reader, const ls_group_rms_norm_params* in, GroupRmsNormParams* out);
void read(Reader& reader, const ls_rms_sum_sq_params* in, RmsSumSqParams* out);
void read(Reader& reader, const ls_tree_from_links_params* in, TreeFromLinksParams* out);
void read(Reader& reader, const ls_state_clear_params* in, StateClearParams* out);
void read(Reader& reader, const ls_state_copy_params* in, StateCopyParams* out);
void read(Reader& reader, const ls_replay_step_params* in, ReplayStepParams* out);
void read(Reader& reader, const ls_replay_fold_params* in, ReplayFoldParams* out);

}  // namespace linestate::capi
