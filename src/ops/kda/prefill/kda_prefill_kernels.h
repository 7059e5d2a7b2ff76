// Every kernel of kda_prefill, in the order `auto` tries them.
#pragma once

#include <string>

#include "dispatch/kernel_table.h"
#include "linestate/ops/kda.h"

namespace linestate {

std::string refuse_kda_prefill_sm90(const KdaParams& params, const ExecContext& context);
int64_t kda_prefill_sm90_workspace(const KdaParams& params, const ExecContext& context);
Status kda_prefill_sm90(const KdaParams& params, const ExecContext& context);
/// Brings snapshots at positions inside a chunk from the state at the chunk's begin, which their
/// slots hold, to their positions.
Status kda_advance_snapshots_cuda(const KdaParams& params, const ExecContext& context);
Status kda_prefill_cuda(const KdaParams& params, const ExecContext& context);
int64_t kda_prefill_cpu_workspace(const KdaParams& params, const ExecContext& context);
Status kda_prefill_cpu(const KdaParams& params, const ExecContext& context);
int64_t kda_prefill_ref_workspace(const KdaParams& params, const ExecContext& context);
Status kda_prefill_ref(const KdaParams& params, const ExecContext& context);

inline constexpr KernelRow<KdaParams> kKdaPrefillRows[] = {
    {"cuda", DeviceType::kCuda,
     "token recurrence in f32, state in registers, portable from sm_80; any dtype, any stride",
     nullptr, nullptr, LINESTATE_CUDA_RUN(kda_prefill_cuda)},
    {"cuda_sm90", DeviceType::kCuda,
     "f16 tensor cores, chunks of 64, sm_90a; K = V = 128, bf16 and f16; by name only",
     LINESTATE_CUDA_RUN(refuse_kda_prefill_sm90), LINESTATE_CUDA_RUN(kda_prefill_sm90_workspace),
     LINESTATE_CUDA_RUN(kda_prefill_sm90)},
    {"cpu", DeviceType::kCpu, "blocks of 16 tokens in f32; any dtype, any stride, K and V to 256",
     nullptr, kda_prefill_cpu_workspace, kda_prefill_cpu},
    {"ref", DeviceType::kCpu, "scalar float64 recurrence, the oracle", nullptr,
     kda_prefill_ref_workspace, kda_prefill_ref},
};

const OpTable<KdaParams>& kda_prefill_table();

}  // namespace linestate
