// Prefill on a GPU, portable: the recurrence token by token, with the state in registers. A block
// owns some rows of S of one (row, head); tokens are made ready a tile at a time in shared memory,
// so that their gates and norms are computed once a block.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/kda/kda_lane_step.cuh"
#include "ops/kda/prefill/kda_prefill_kernels.h"

namespace linestate {
namespace {

constexpr int kWarps = 8;

template <typename Map>
struct Tile {
  static constexpr int kTokens = 2048 / Map::kChannels;
  static constexpr int kRows = kWarps * Map::kWarpRows;
  float alpha[kTokens][Map::kChannels];
  float k[kTokens][Map::kChannels];
  float q[kTokens][Map::kChannels];
  float v[kTokens][kRows];
  float kq[kTokens];
  float beta[kTokens];
};

template <typename Map>
__device__ void move_lanes(const float (&x)[Map::kElems], float* to) {
#pragma unroll
  for (int i = 0; i < Map::kQuads; ++i) {
    *reinterpret_cast<float4*>(to + Map::channel(i)) =
        make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  }
}

template <typename Map>
__device__ void fetch_lanes(const float* from, float (&x)[Map::kElems]) {
#pragma unroll
  for (int i = 0; i < Map::kQuads; ++i) {
    const float4 quad = *reinterpret_cast<const float4*>(from + Map::channel(i));
    x[4 * i] = quad.x;
    x[4 * i + 1] = quad.y;
    x[4 * i + 2] = quad.z;
    x[4 * i + 3] = quad.w;
  }
}

/// Tokens t .. t + count - 1; `first` is the block's first row of S.
template <typename Map>
__device__ void fill_tile(const KdaDevice& p, const KdaGateHead& head, int64_t t, int count,
                          int64_t j, int64_t first, Tile<Map>& tile) {
  const int warps = static_cast<int>(blockDim.x / 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int base = warp * Map::kGroups; base < count; base += warps * Map::kGroups) {
    const int i = base + Map::group();
    KdaLaneToken<Map> token;
    load_kda_token<Map>(p, head, t + (i < count ? i : count - 1), j, token);
    if (i >= count) continue;
    move_lanes<Map>(token.alpha, tile.alpha[i]);
    move_lanes<Map>(token.k, tile.k[i]);
    move_lanes<Map>(token.q, tile.q[i]);
    if (Map::lane() == 0) {
      tile.kq[i] = token.kq;
      tile.beta[i] = token.beta;
    }
  }
  const int rows = warps * Map::kWarpRows;
  for (int at = static_cast<int>(threadIdx.x); at < count * rows; at += warps * 32) {
    const int64_t v = first + at % rows;
    tile.v[at / rows][at % rows] = v < p.V ? load_at(p.v, t + at / rows, j, v) : 0.0f;
  }
}

/// Stores the snapshots wanted after `done` tokens; returns the count that the next one wants.
template <typename Map>
__device__ int64_t take_snapshots(const KdaDevice& p, int64_t n, const DeviceRow& row, int64_t done,
                                  int64_t j, int64_t first, const KdaLaneRows<Map>& rows) {
  for (int64_t m = 0; m < p.snapshots.count; ++m) {
    if (snapshot_after(p.snapshots, p.rows, n, row, row.valid, m) != done) continue;
    keep_kda_rows<Map>(p, n, p.snapshots.slot.at(m), j, first, rows);
  }
  return next_snapshot(p.snapshots, p.rows, n, row, row.valid, done);
}

/// All tokens of a row; without `outputs` the state alone is advanced, and no snapshot taken.
template <typename Map, bool kOutputs>
__device__ void run_tokens(const KdaDevice& p, int64_t n, int64_t j, const DeviceRow& row,
                           int64_t block_first, Tile<Map>& tile) {
  using Role = KdaLaneRole<Map>;
  const int in_block = static_cast<int>(threadIdx.x / 32) * Map::kWarpRows;
  const int64_t first = block_first + in_block;
  const int spoken = in_block + Map::group() * kStateRows + Role::row();
  const KdaGateHead head = kda_gate_head(p, j);
  KdaLaneRows<Map> rows;
  load_kda_rows<Map>(p, row.slot, j, first, row.fresh, rows);
  int64_t next = kNoSnapshot;
  if (kOutputs) next = next_snapshot(p.snapshots, p.rows, n, row, row.valid, 0);
  for (int64_t done = 0; done < row.valid; done += Tile<Map>::kTokens) {
    const int count = static_cast<int>(min(row.valid - done, int64_t{Tile<Map>::kTokens}));
    __syncthreads();
    fill_tile<Map>(p, head, row.token_begin + done, count, j, block_first, tile);
    __syncthreads();
    for (int i = 0; i < count; ++i) {
      KdaLaneToken<Map> token;
      fetch_lanes<Map>(tile.alpha[i], token.alpha);
      fetch_lanes<Map>(tile.k[i], token.k);
      fetch_lanes<Map>(tile.q[i], token.q);
      token.kq = tile.kq[i];
      token.beta = tile.beta[i];
      const KdaLaneResult result = step_kda_rows<Map>(token, tile.v[i][spoken], rows);
      if (!kOutputs) continue;
      store_kda_out<Map>(p, row.token_begin + done + i, j, first, result.o);
      if (next == done + i + 1) next = take_snapshots<Map>(p, n, row, next, j, first, rows);
    }
  }
  keep_kda_rows<Map>(p, n, row.slot, j, first, rows);
}

/// Task = (row, value head, piece of V); row N is the tail behind all rows.
template <typename Map>
__global__ void __launch_bounds__(32 * kWarps)
    kda_prefill_kernel(const __grid_constant__ KdaDevice p, int64_t pieces, int64_t tasks) {
  __shared__ __align__(16) Tile<Map> tile;
  const int64_t block_rows = blockDim.x / 32 * Map::kWarpRows;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t piece = task % pieces;
    const int64_t j = task / pieces % p.HV;
    const int64_t n = task / pieces / p.HV;
    const bool reports = piece == 0 && j == 0 && threadIdx.x < 32;
    const DeviceRow row = read_prefill_row(p.rows, n, reports ? p.status : nullptr);
    if (reports) report_snapshots(p.snapshots, p.rows, n, row, row.valid, p.status);
    const int64_t block_first = piece * block_rows;
    const int64_t first = block_first + threadIdx.x / 32 * Map::kWarpRows;
    for (int64_t i = row.valid; i < row.tokens; ++i) {
      clear_kda_out<Map>(p, row.token_begin + i, j, first);
    }
    if (row.valid > 0) {
      run_tokens<Map, true>(p, n, j, row, block_first, tile);
    } else if (row.live && row.fresh) {
      clear_kda_rows<Map>(p, row.slot, j, first);
    }
  }
}

/// Task = (entry of the snapshot plan, value head, piece of V).
template <typename Map>
__global__ void __launch_bounds__(32 * kWarps)
    kda_advance_kernel(const __grid_constant__ KdaDevice p, int64_t pieces, int64_t tasks) {
  __shared__ __align__(16) Tile<Map> tile;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t j = task / pieces % p.HV;
    const int64_t m = task / pieces / p.HV;
    const int64_t n = p.snapshots.row.at(m);
    if (n < 0 || n >= p.rows.count) continue;
    DeviceRow row = read_prefill_row(p.rows, n, nullptr);
    const int64_t wanted = snapshot_after(p.snapshots, p.rows, n, row, row.valid, m);
    if (wanted == kNoSnapshot || wanted == row.valid) continue;
    const int64_t lead = row.start % kChunkTokens;
    const int64_t kept = max((lead + wanted) / kChunkTokens * kChunkTokens - lead, int64_t{0});
    if (kept >= wanted) continue;
    row.token_begin += kept;
    row.valid = wanted - kept;
    row.slot = p.snapshots.slot.at(m);
    row.fresh = false;
    run_tokens<Map, false>(p, n, j, row, task % pieces * (blockDim.x / 32 * Map::kWarpRows), tile);
  }
}

}  // namespace

Status kda_advance_snapshots_cuda(const KdaParams& params, const ExecContext& context) {
  const KdaDevice p = kda_device(params, context);
  return with_kda_map(p.K, [&]<typename Map>() {
    const int64_t warps = min_i64(ceil_div(p.V, Map::kWarpRows), kWarps);
    const int64_t pieces = ceil_div(p.V, warps * Map::kWarpRows);
    const int64_t tasks = p.snapshots.count * p.HV * pieces;
    return launch("kda_prefill snapshots", kda_advance_kernel<Map>, grid_of(tasks),
                  static_cast<unsigned>(32 * warps), context, p, pieces, tasks);
  });
}

Status kda_prefill_cuda(const KdaParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const KdaDevice p = kda_device(params, context);
  const Status status = with_kda_map(p.K, [&]<typename Map>() {
    const int64_t warps = min_i64(ceil_div(p.V, Map::kWarpRows), kWarps);
    const int64_t pieces = ceil_div(p.V, warps * Map::kWarpRows);
    const int64_t tasks = (p.rows.count + 1) * p.HV * pieces;
    return launch("kda_prefill", kda_prefill_kernel<Map>, grid_of(tasks),
                  static_cast<unsigned>(32 * warps), context, p, pieces, tasks);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.out);
}

}  // namespace linestate
