// Persistent kernels over panels of the state: a block goes through its tasks, and while it works
// on one, the state of the next is on the way.
#pragma once

#include <cstdint>

#include "base/int_math.h"
#include "cuda/fast_divider.h"
#include "cuda/launch.cuh"
#include "ops/kda/kda_lane_step.cuh"
#include "ops/kda/kda_panel.cuh"

namespace linestate {

inline constexpr int kPanelWarps = 8;
inline constexpr int kPanelThreads = 32 * kPanelWarps;
inline constexpr int kPanelBlocks = 2;       // of a multiprocessor
inline constexpr int kPanelBlockRows = 128;  // most rows of S of a task

/// The tile that goes with a KdaMap.
template <typename Map>
using KdaPanelOf = KdaPanel<(Map::kChannels > 128 ? 16 : 8), (Map::kChannels > 64 ? 4 : 2)>;

template <typename Map>
using KdaStageOf = KdaPanelStage<KdaPanelOf<Map>, kPanelThreads>;

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
  int32_t count;
  int32_t piece_rows, V;
  int32_t row_warps;          // warps that the rows of a piece need; a power of two
  FastDivider pieces, heads;  // by pieces of a head, by value heads

  __device__ KdaTask at(int32_t task) const {
    uint32_t piece;
    uint32_t j;
    const uint32_t head = pieces.divide(static_cast<uint32_t>(task), piece);
    const uint32_t n = heads.divide(head, j);
    const int32_t begin = static_cast<int32_t>(piece) * piece_rows;
    return {static_cast<int64_t>(n), static_cast<int32_t>(j), begin, min(begin + piece_rows, V)};
  }
  /// The block's next task behind `now`; count when there is none.
  __device__ int32_t after(int32_t now) const {
    const auto blocks = static_cast<int32_t>(gridDim.x);
    return now < count - blocks ? now + blocks : count;
  }
};

/// First of the warp's rows of S.
template <typename Panel>
__device__ int first_row_of(const KdaTask& task) {
  return task.begin + static_cast<int>(threadIdx.x / 32) * Panel::kWarpRows;
}

// What a block has to know of a task to fetch its state: a slot, or one of these.
inline constexpr int64_t kNoState = -1;
inline constexpr int64_t kFreshState = -2;

template <typename Panel>
__device__ void fetch_task(const KdaDevice& p, const KdaTask& task, int64_t state,
                           KdaPanelStage<Panel, kPanelThreads>& stage) {
  const int first = first_row_of<Panel>(task);
  if (state == kNoState || first >= task.end) return;
  const bool fresh = state == kFreshState;
  fetch_kda_panel<Panel>(p.state, p.K, {fresh ? 0 : state, task.j, first, p.V, fresh}, stage);
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

/// Starts `kernel(device, tasks)` with `bytes` of shared memory a block. Few heads are cut into
/// pieces of V, so that the whole GPU reads, unless a task has to own its head. Rows of S do not
/// see each other: no bit depends on the cut.
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
  constexpr int64_t kWarpRows = KdaPanelOf<Map>::kWarpRows;
  // Smallest pieces that one round of blocks can take.
  int64_t warps = whole_heads ? kPanelWarps : 1;
  while (warps < kPanelWarps &&
         heads * ceil_div(kda.V, warps * kWarpRows) > kPanelBlocks * processors) {
    warps *= 2;
  }
  KdaTasks tasks{};
  tasks.piece_rows = static_cast<int32_t>(whole_heads ? kda.V : warps * kWarpRows);
  tasks.V = kda.V;
  const int64_t pieces = ceil_div(kda.V, tasks.piece_rows);
  const int64_t count = heads * pieces;
  if (count > INT32_MAX) return Status(StatusCode::kUnsupported, "rows times heads exceed 2^31");
  tasks.count = static_cast<int32_t>(count);
  tasks.pieces = FastDivider(pieces);
  tasks.heads = FastDivider(kda.HV);
  const int64_t blocks = min_i64(count, kPanelBlocks * processors);
  if (blocks == 0) return {};
  Device copy = device;
  void* arguments[] = {&copy, &tasks};
  return cuda_status(name, cudaLaunchKernel(entry, grid_of(blocks), dim3(kPanelThreads), arguments,
                                            static_cast<size_t>(bytes),
                                            static_cast<cudaStream_t>(context.stream)));
}

}  // namespace linestate
