// Every kernel of kda_verify, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/kda_verify.h"

namespace linestate {

Status kda_verify_cuda(const KdaVerifyParams& params, const ExecContext& context);
int64_t kda_verify_cpu_workspace(const KdaVerifyParams& params, const ExecContext& context);
Status kda_verify_cpu(const KdaVerifyParams& params, const ExecContext& context);
int64_t kda_verify_ref_workspace(const KdaVerifyParams& params, const ExecContext& context);
Status kda_verify_ref(const KdaVerifyParams& params, const ExecContext& context);

inline constexpr KernelRow<KdaVerifyParams> kKdaVerifyRows[] = {
    {"cuda", DeviceType::kCuda,
     "dual form, one pass over the state; rows above 16 nodes one by one; portable from sm_80",
     nullptr, nullptr, LINESTATE_CUDA_RUN(kda_verify_cuda)},
    {"cpu", DeviceType::kCpu,
     "one pass over the state in f32, a row of it a node; any dtype, any stride, K and V to 256",
     nullptr, kda_verify_cpu_workspace, kda_verify_cpu},
    {"ref", DeviceType::kCpu, "scalar float64 recurrence along every path, the oracle", nullptr,
     kda_verify_ref_workspace, kda_verify_ref},
};

const OpTable<KdaVerifyParams>& kda_verify_table();

}  // namespace linestate
