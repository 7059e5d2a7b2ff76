// Every kernel of kda_decode_step, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/kda_decode_step.h"

namespace linestate {

std::string refuse_kda_decode_step_cuda(const KdaDecodeStepParams& params,
                                        const ExecContext& context);
Status kda_decode_step_cuda(const KdaDecodeStepParams& params, const ExecContext& context);
int64_t kda_decode_step_cpu_workspace(const KdaDecodeStepParams& params,
                                      const ExecContext& context);
Status kda_decode_step_cpu(const KdaDecodeStepParams& params, const ExecContext& context);
int64_t kda_decode_step_ref_workspace(const KdaDecodeStepParams& params,
                                      const ExecContext& context);
Status kda_decode_step_ref(const KdaDecodeStepParams& params, const ExecContext& context);

inline constexpr KernelRow<KdaDecodeStepParams> kKdaDecodeStepRows[] = {
    {"cuda", DeviceType::kCuda,
     "one launch, bits of the three operators; K = V = 128, W = 4, at most 8 value heads a key "
     "head; portable from sm_80",
     LINESTATE_CUDA_RUN(refuse_kda_decode_step_cuda), nullptr,
     LINESTATE_CUDA_RUN(kda_decode_step_cuda)},
    {"cpu", DeviceType::kCpu, "the cpu rows of the three operators, one after the other", nullptr,
     kda_decode_step_cpu_workspace, kda_decode_step_cpu},
    {"ref", DeviceType::kCpu, "the ref rows of the three operators, one after the other", nullptr,
     kda_decode_step_ref_workspace, kda_decode_step_ref},
};

const OpTable<KdaDecodeStepParams>& kda_decode_step_table();

}  // namespace linestate
