// A decode row of a pool with replay rings as kernels see it: the row, how many records wait, and
// whether this token writes the state.
#pragma once

#include <cstdint>

#include "cuda/device_rows.cuh"

namespace linestate {

struct DeviceReplayRows {
  IndexView pending;  // [N]
  const uint8_t* flush;
  int64_t flush_stride;
  int32_t records;  // R-1
};

/// Of Params with `pending`, `flush` and `ring`.
template <typename Params>
DeviceReplayRows device_replay_rows(const Params& params) {
  return {index_view(params.pending), static_cast<const uint8_t*>(params.flush.data),
          params.flush.stride[0], static_cast<int32_t>(params.ring.keys.shape[2])};
}

struct DeviceReplayStep {
  DeviceRow row;
  int32_t pending = 0;
  bool flush = false;
};

/// Row n. A count that the ring cannot hold makes it padding. `status` is null for all but the one
/// thread that reports the row.
__device__ inline DeviceReplayStep read_replay_step(const DeviceRows& rows,
                                                    const DeviceReplayRows& replay, int64_t n,
                                                    DeviceStatus* status) {
  DeviceReplayStep step{read_decode_row(rows, n, status)};
  if (step.row.valid == 0) return step;
  const int64_t pending = step.row.fresh ? 0 : replay.pending.at(n);
  step.flush = replay.flush[n * replay.flush_stride] != 0;
  if (pending < 0 || pending > replay.records || (!step.flush && pending == replay.records)) {
    raise_flag(status, DeviceFlag::kBadOffsets, n);
    step.row.live = false;
    step.row.valid = 0;
  }
  step.pending = static_cast<int32_t>(pending);
  return step;
}

}  // namespace linestate
