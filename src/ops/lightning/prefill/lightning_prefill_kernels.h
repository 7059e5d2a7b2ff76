// Kernels of lightning_prefill, in the order `auto` tries them.
#pragma once

#include <string>

#include "dispatch/kernel_table.h"
#include "linestate/ops/lightning.h"

namespace linestate {

std::string refuse_lightning_prefill_sm90(const LightningParams& params,
                                          const ExecContext& context);
int64_t lightning_prefill_sm90_workspace_bytes(const LightningParams& params,
                                               const ExecContext& context);
Status lightning_prefill_sm90(const LightningParams& params, const ExecContext& context);
Status lightning_prefill_cuda(const LightningParams& params, const ExecContext& context);
/// Only the snapshots, by the kernel of lightning_prefill_cuda; before states are advanced.
Status lightning_prefill_snapshots_cuda(const LightningParams& params, const ExecContext& context);
int64_t lightning_prefill_cpu_workspace_bytes(const LightningParams& params,
                                              const ExecContext& context);
Status lightning_prefill_cpu(const LightningParams& params, const ExecContext& context);

int64_t lightning_prefill_ref_workspace_bytes(const LightningParams& params,
                                              const ExecContext& context);
Status lightning_prefill_ref(const LightningParams& params, const ExecContext& context);

inline constexpr KernelRow<LightningParams> kLightningPrefillRows[] = {
    {"cuda_sm90", DeviceType::kCuda,
     "chunks of 64 on tensor cores, two bf16 an operand, sm_90a; D = 128, bf16",
     LINESTATE_CUDA_RUN(refuse_lightning_prefill_sm90),
     LINESTATE_CUDA_RUN(lightning_prefill_sm90_workspace_bytes),
     LINESTATE_CUDA_RUN(lightning_prefill_sm90)},
    {"cuda", DeviceType::kCuda, "token recurrence in f32, state in registers, portable from sm_80",
     nullptr, nullptr, LINESTATE_CUDA_RUN(lightning_prefill_cuda)},
    {"cpu", DeviceType::kCpu, "blocks of 32 tokens in f32; f32, bf16, f16; D 16 to 256", nullptr,
     lightning_prefill_cpu_workspace_bytes, lightning_prefill_cpu},
    {"ref", DeviceType::kCpu, "float64 oracle, one token at a time; f32, bf16, f16; D 16 to 256",
     nullptr, lightning_prefill_ref_workspace_bytes, lightning_prefill_ref},
};

const OpTable<LightningParams>& lightning_prefill_table();

}  // namespace linestate
