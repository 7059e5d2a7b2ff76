// Every kernel of kda_commit, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/kda_verify.h"

namespace linestate {

Status kda_commit_cuda(const KdaCommitParams& params, const ExecContext& context);
int64_t kda_commit_cpu_workspace(const KdaCommitParams& params, const ExecContext& context);
Status kda_commit_cpu(const KdaCommitParams& params, const ExecContext& context);
int64_t kda_commit_ref_workspace(const KdaCommitParams& params, const ExecContext& context);
Status kda_commit_ref(const KdaCommitParams& params, const ExecContext& context);

inline constexpr KernelRow<KdaCommitParams> kKdaCommitRows[] = {
    {"cuda", DeviceType::kCuda,
     "the record on rows of the state and the windows in one launch, portable from sm_80", nullptr,
     nullptr, LINESTATE_CUDA_RUN(kda_commit_cuda)},
    {"cpu", DeviceType::kCpu,
     "replays the record on the state in f32; any state stride, K and V to 256", nullptr,
     kda_commit_cpu_workspace, kda_commit_cpu},
    {"ref", DeviceType::kCpu, "scalar float64 updates along the path, the oracle", nullptr,
     kda_commit_ref_workspace, kda_commit_ref},
};

const OpTable<KdaCommitParams>& kda_commit_table();

}  // namespace linestate
