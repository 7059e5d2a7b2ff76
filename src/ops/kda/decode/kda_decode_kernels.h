// Every kernel of kda_decode, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/kda.h"

namespace linestate {

Status kda_decode_cuda(const KdaParams& params, const ExecContext& context);
int64_t kda_decode_cpu_workspace(const KdaParams& params, const ExecContext& context);
Status kda_decode_cpu(const KdaParams& params, const ExecContext& context);
int64_t kda_decode_ref_workspace(const KdaParams& params, const ExecContext& context);
Status kda_decode_ref(const KdaParams& params, const ExecContext& context);

inline constexpr KernelRow<KdaParams> kKdaDecodeRows[] = {
    {"cuda", DeviceType::kCuda,
     "one pass over the state in f32, portable from sm_80; any dtype, any stride, K and V to 256",
     nullptr, nullptr, LINESTATE_CUDA_RUN(kda_decode_cuda)},
    {"cpu", DeviceType::kCpu,
     "one pass over the state in f32; any dtype, any stride, K and V to 256", nullptr,
     kda_decode_cpu_workspace, kda_decode_cpu},
    {"ref", DeviceType::kCpu, "scalar float64 recurrence, the oracle", nullptr,
     kda_decode_ref_workspace, kda_decode_ref},
};

const OpTable<KdaParams>& kda_decode_table();

}  // namespace linestate
