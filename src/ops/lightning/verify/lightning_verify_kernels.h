// Kernels of lightning_verify, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/lightning_verify.h"

namespace linestate {

Status lightning_verify_cuda(const LightningVerifyParams& params, const ExecContext& context);
int64_t lightning_verify_cpu_workspace_bytes(const LightningVerifyParams& params,
                                             const ExecContext& context);
Status lightning_verify_cpu(const LightningVerifyParams& params, const ExecContext& context);

int64_t lightning_verify_ref_workspace_bytes(const LightningVerifyParams& params,
                                             const ExecContext& context);
Status lightning_verify_ref(const LightningVerifyParams& params, const ExecContext& context);

inline constexpr KernelRow<LightningVerifyParams> kLightningVerifyRows[] = {
    {"cuda", DeviceType::kCuda,
     "state in registers, a branch replays its path, portable from sm_80", nullptr, nullptr,
     LINESTATE_CUDA_RUN(lightning_verify_cuda)},
    {"cpu", DeviceType::kCpu,
     "one pass over the state for all nodes in f32; f32, bf16, f16; D 16 to 256", nullptr,
     lightning_verify_cpu_workspace_bytes, lightning_verify_cpu},
    {"ref", DeviceType::kCpu, "float64 oracle, one node at a time; f32, bf16, f16; D 16 to 256",
     nullptr, lightning_verify_ref_workspace_bytes, lightning_verify_ref},
};

const OpTable<LightningVerifyParams>& lightning_verify_table();

}  // namespace linestate
