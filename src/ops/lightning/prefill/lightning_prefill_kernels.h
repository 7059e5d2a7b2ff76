// Kernels of lightning_prefill, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/lightning.h"

namespace linestate {

Status lightning_prefill_cuda(const LightningParams& params, const ExecContext& context);
int64_t lightning_prefill_cpu_workspace_bytes(const LightningParams& params,
                                              const ExecContext& context);
Status lightning_prefill_cpu(const LightningParams& params, const ExecContext& context);

int64_t lightning_prefill_ref_workspace_bytes(const LightningParams& params,
                                              const ExecContext& context);
Status lightning_prefill_ref(const LightningParams& params, const ExecContext& context);

inline constexpr KernelRow<LightningParams> kLightningPrefillRows[] = {
    {"cuda", DeviceType::kCuda, "token recurrence in f32, state in registers, portable from sm_80",
     nullptr, nullptr, LINESTATE_CUDA_RUN(lightning_prefill_cuda)},
    {"cpu", DeviceType::kCpu, "blocks of 32 tokens in f32; f32, bf16, f16; D 16 to 256", nullptr,
     lightning_prefill_cpu_workspace_bytes, lightning_prefill_cpu},
    {"ref", DeviceType::kCpu, "float64 oracle, one token at a time; f32, bf16, f16; D 16 to 256",
     nullptr, lightning_prefill_ref_workspace_bytes, lightning_prefill_ref},
};

const OpTable<LightningParams>& lightning_prefill_table();

}  // namespace linestate
