// Every kernel of kda_decode_replay, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/replay_ring.h"

namespace linestate {

Status kda_decode_replay_cuda(const KdaReplayParams& params, const ExecContext& context);
int64_t kda_decode_replay_cpu_workspace(const KdaReplayParams& params, const ExecContext& context);
Status kda_decode_replay_cpu(const KdaReplayParams& params, const ExecContext& context);
int64_t kda_decode_replay_ref_workspace(const KdaReplayParams& params, const ExecContext& context);
Status kda_decode_replay_ref(const KdaReplayParams& params, const ExecContext& context);

inline constexpr KernelRow<KdaReplayParams> kKdaDecodeReplayRows[] = {
    {"cuda", DeviceType::kCuda,
     "dual form in f32, the state is written only to flush, portable from sm_80", nullptr, nullptr,
     LINESTATE_CUDA_RUN(kda_decode_replay_cuda)},
    {"cpu", DeviceType::kCpu,
     "dual form in f32, the state is read and written only to flush; rings f32 and f16", nullptr,
     kda_decode_replay_cpu_workspace, kda_decode_replay_cpu},
    {"ref", DeviceType::kCpu, "dual form in scalar float64, the oracle", nullptr,
     kda_decode_replay_ref_workspace, kda_decode_replay_ref},
};

const OpTable<KdaReplayParams>& kda_decode_replay_table();

}  // namespace linestate
