// Every kernel of replay_step_begin, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/replay_ring.h"

namespace linestate {

Status replay_step_begin_cuda(const ReplayStepParams& params, const ExecContext& context);
Status replay_step_begin_cpu(const ReplayStepParams& params, const ExecContext& context);
Status replay_step_begin_ref(const ReplayStepParams& params, const ExecContext& context);

inline constexpr KernelRow<ReplayStepParams> kReplayStepBeginRows[] = {
    {"cuda", DeviceType::kCuda, "a thread a row, portable from sm_80", nullptr, nullptr,
     LINESTATE_CUDA_RUN(replay_step_begin_cuda)},
    {"cpu", DeviceType::kCpu, "one pass over the rows", nullptr, nullptr, replay_step_begin_cpu},
    {"ref", DeviceType::kCpu, "the protocol's definition, row by row", nullptr, nullptr,
     replay_step_begin_ref},
};

const OpTable<ReplayStepParams>& replay_step_begin_table();

}  // namespace linestate
