// Kernels of lightning_commit, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/lightning_verify.h"

namespace linestate {

Status lightning_commit_cuda(const LightningCommitParams& params, const ExecContext& context);
int64_t lightning_commit_cpu_workspace_bytes(const LightningCommitParams& params,
                                             const ExecContext& context);
Status lightning_commit_cpu(const LightningCommitParams& params, const ExecContext& context);

int64_t lightning_commit_ref_workspace_bytes(const LightningCommitParams& params,
                                             const ExecContext& context);
Status lightning_commit_ref(const LightningCommitParams& params, const ExecContext& context);

inline constexpr KernelRow<LightningCommitParams> kLightningCommitRows[] = {
    {"cuda", DeviceType::kCuda, "the record on the state in registers, portable from sm_80",
     nullptr, nullptr, LINESTATE_CUDA_RUN(lightning_commit_cuda)},
    {"cpu", DeviceType::kCpu, "blocks of 32 records in f32; f32, bf16, f16; D 16 to 256", nullptr,
     lightning_commit_cpu_workspace_bytes, lightning_commit_cpu},
    {"ref", DeviceType::kCpu, "float64 oracle, one record at a time; f32, bf16, f16; D 16 to 256",
     nullptr, lightning_commit_ref_workspace_bytes, lightning_commit_ref},
};

const OpTable<LightningCommitParams>& lightning_commit_table();

}  // namespace linestate
