// Kernels of lightning_decode, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/lightning.h"

namespace linestate {

Status lightning_decode_cuda(const LightningParams& params, const ExecContext& context);
int64_t lightning_decode_cpu_workspace_bytes(const LightningParams& params,
                                             const ExecContext& context);
Status lightning_decode_cpu(const LightningParams& params, const ExecContext& context);

int64_t lightning_decode_ref_workspace_bytes(const LightningParams& params,
                                             const ExecContext& context);
Status lightning_decode_ref(const LightningParams& params, const ExecContext& context);

inline constexpr KernelRow<LightningParams> kLightningDecodeRows[] = {
    {"cuda", DeviceType::kCuda,
     "one pass over the state in f32, any dtype, any stride, portable from sm_80", nullptr, nullptr,
     LINESTATE_CUDA_RUN(lightning_decode_cuda)},
    {"cpu", DeviceType::kCpu, "one pass over the state in f32; f32, bf16, f16; D 16 to 256",
     nullptr, lightning_decode_cpu_workspace_bytes, lightning_decode_cpu},
    {"ref", DeviceType::kCpu, "float64 oracle, one token at a time; f32, bf16, f16; D 16 to 256",
     nullptr, lightning_decode_ref_workspace_bytes, lightning_decode_ref},
};

const OpTable<LightningParams>& lightning_decode_table();

}  // namespace linestate
