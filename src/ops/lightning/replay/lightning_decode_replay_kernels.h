// Kernels of lightning_decode_replay, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/replay_ring.h"

namespace linestate {

Status lightning_decode_replay_cuda(const LightningReplayParams& params,
                                    const ExecContext& context);
int64_t lightning_decode_replay_cpu_workspace_bytes(const LightningReplayParams& params,
                                                    const ExecContext& context);
Status lightning_decode_replay_cpu(const LightningReplayParams& params, const ExecContext& context);

int64_t lightning_decode_replay_ref_workspace_bytes(const LightningReplayParams& params,
                                                    const ExecContext& context);
Status lightning_decode_replay_ref(const LightningReplayParams& params, const ExecContext& context);

inline constexpr KernelRow<LightningReplayParams> kLightningReplayRows[] = {
    {"cuda", DeviceType::kCuda,
     "dual form in f32, the state is written only to flush, portable from sm_80", nullptr, nullptr,
     LINESTATE_CUDA_RUN(lightning_decode_replay_cuda)},
    {"cpu", DeviceType::kCpu, "reads the checkpoint once, writes it on flush; D 16 to 256", nullptr,
     lightning_decode_replay_cpu_workspace_bytes, lightning_decode_replay_cpu},
    {"ref", DeviceType::kCpu, "float64 oracle, replays the records one by one; D 16 to 256",
     nullptr, lightning_decode_replay_ref_workspace_bytes, lightning_decode_replay_ref},
};

const OpTable<LightningReplayParams>& lightning_decode_replay_table();

}  // namespace linestate
