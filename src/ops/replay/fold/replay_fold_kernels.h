// Every kernel of replay_fold, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/replay_ring.h"

namespace linestate {

Status replay_fold_cuda(const ReplayFoldParams& params, const ExecContext& context);
Status replay_fold_cpu(const ReplayFoldParams& params, const ExecContext& context);
Status replay_fold_ref(const ReplayFoldParams& params, const ExecContext& context);

inline constexpr KernelRow<ReplayFoldParams> kReplayFoldRows[] = {
    {"cuda", DeviceType::kCuda, "a thread an element of the state, portable from sm_80", nullptr,
     nullptr, LINESTATE_CUDA_RUN(replay_fold_cuda)},
    {"cpu", DeviceType::kCpu, "a row of the state at a time in f32, KDA and Lightning layers",
     nullptr, nullptr, replay_fold_cpu},
    {"ref", DeviceType::kCpu, "scalar float64, the oracle", nullptr, nullptr, replay_fold_ref},
};

const OpTable<ReplayFoldParams>& replay_fold_table();

}  // namespace linestate
