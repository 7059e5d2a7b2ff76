// Persistent kernels over tiles of the state: a block goes through its tasks, and while it works on
// one, the state of the next is on the way.
#pragma once

#include <cstdint>

#include "base/int_math.h"
#include "cuda/launch.cuh"
#include "ops/kda/kda_lane_step.cuh"
#include "ops/kda/kda_tile.cuh"

namespace linestate {

inline constexpr int kTileWarps = 8;
inline constexpr int kTileThreads = 32 * kTileWarps;
inline constexpr int kTileBlocks = 2;       // of a multiprocessor
inline constexpr int kTileBlockRows = 128;  // most rows of S of a task

/// The tile that goes with a KdaMap.
template <typename Map>
using KdaTileOf = KdaTile<(Map::kChannels > 128 ? 16 : 8), (Map::kChannels > 64 ? 4 : 2)>;

template <typename Map>
using KdaStageOf = KdaTileStage<KdaTileOf<Map>, kTileThreads>;

/// Rows [begin, end) of S of value head j for row n of the call.
struct KdaTask {
  int64_t n;
  int32_t j;
  int32_t begin, end;

  __device__ bool leads() const { return begin == 0; }  // does what is to be done once a head
  /// Reports for row n: once a row.
  __device__ DeviceStatus* status(DeviceStatus* of_call) const {
    return begin == 0 && j == 0 ? of_call : nullptr;
  }
};

/// How tasks are numbered: pieces of V, then value heads, then rows.
struct KdaTasks {
  int64_t count;
  int32_t pieces, piece_rows;
  int32_t HV, V;

  __device__ KdaTask at(int64_t task) const {
    const int32_t begin = static_cast<int32_t>(task % pieces) * piece_rows;
    const int64_t head = task / pieces;
    return {head / HV, static_cast<int32_t>(head % HV), begin, min(begin + piece_rows, V)};
  }
};

/// First of the warp's rows of S.
template <typename Tile>
__device__ int first_row_of(const KdaTask& task) {
  return task.begin + static_cast<int>(threadIdx.x / 32) * Tile::kWarpRows;
}

// What a block has to know of a task to fetch its state: a slot, or one of these.
inline constexpr int64_t kNoState = -1;
inline constexpr int64_t kFreshState = -2;

template <typename Tile>
__device__ void fetch_task(const KdaDevice& p, const KdaTask& task, int64_t state,
                           KdaTileStage<Tile, kTileThreads>& stage) {
  const int first = first_row_of<Tile>(task);
  if (state == kNoState || first >= task.end) return;
  const bool fresh = state == kFreshState;
  fetch_kda_tile<Tile>(p.state, p.K, {fresh ? 0 : state, task.j, first, p.V, fresh}, stage);
}

/// The lanes' channels of a vector in shared memory, [kChannels].
template <typename Map>
__device__ void put_lanes(const float (&x)[Map::kElems], float* to) {
  if (Map::group() != 0) return;
#pragma unroll
  for (int i = 0; i < Map::kQuads; ++i) {
    *reinterpret_cast<float4*>(to + Map::channel(i)) =
        make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  }
}

template <typename Map>
__device__ void get_lanes(const float* from, float (&x)[Map::kElems]) {
#pragma unroll
  for (int i = 0; i < Map::kQuads; ++i) {
    const float4 quad = *reinterpret_cast<const float4*>(from + Map::channel(i));
    x[4 * i] = quad.x;
    x[4 * i + 1] = quad.y;
    x[4 * i + 2] = quad.z;
    x[4 * i + 3] = quad.w;
  }
}

/// Starts `kernel(device, tasks)` with `bytes` of shared memory for `heads` heads. Few of them are
/// cut into pieces of V, so that the whole GPU reads. Rows do not see each other: no bit depends on
/// the cut.
template <typename Map, typename Device>
Status launch_kda_tasks(const char* name, void (*kernel)(Device, KdaTasks), const Device& device,
                        const KdaDevice& kda, int64_t rows, bool whole_heads, int bytes,
                        const ExecContext& context) {
  const auto entry = reinterpret_cast<const void*>(kernel);
  LINESTATE_CUDA_CALL(
      name, cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  int processors = 0;
  LINESTATE_CUDA_CALL(
      "number of processors",
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, context.device.index));
  const int64_t heads = rows * kda.HV;
  const int64_t warps = whole_heads || heads >= kTileBlocks * processors ? kTileWarps
                        : 2 * heads >= processors                        ? 2
                                                                         : 1;
  KdaTasks tasks{};
  tasks.piece_rows = static_cast<int32_t>(warps * KdaTileOf<Map>::kWarpRows);
  tasks.pieces = static_cast<int32_t>(ceil_div(kda.V, tasks.piece_rows));
  tasks.HV = kda.HV;
  tasks.V = kda.V;
  tasks.count = heads * tasks.pieces;
  const int64_t blocks = min_i64(tasks.count, kTileBlocks * processors);
  if (blocks == 0) return {};
  Device copy = device;
  void* arguments[] = {&copy, &tasks};
  return cuda_status(name, cudaLaunchKernel(entry, grid_of(blocks), dim3(kTileThreads), arguments,
                                            static_cast<size_t>(bytes),
                                            static_cast<cudaStream_t>(context.stream)));
}

}  // namespace linestate
