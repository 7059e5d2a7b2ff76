// A block of rows of S in the registers of a warp, laid out for many products with it: eight (or
// sixteen) lanes share four rows, so that a lane multiplies sixteen channels before lanes have to
// add up. Quad i of lane l holds channels (l + kLanes * i) * 4 and the three behind it.
#pragma once

#include <cstdint>

#include "cuda/async_copy.cuh"
#include "cuda/device_view.cuh"
#include "cuda/warp.cuh"

namespace linestate {

/// Rows of S that a lane has a part of.
inline constexpr int kTileRows = 4;

template <int kLanesIn, int kQuadsIn>
struct KdaTile {
  static constexpr int kLanes = kLanesIn;
  static constexpr int kQuads = kQuadsIn;
  static constexpr int kElems = 4 * kQuads;
  static constexpr int kChannels = kLanes * kElems;
  static constexpr int kWarpRows = 32 / kLanes * kTileRows;
  static constexpr int kShare = kLanes / (2 * kTileRows);  // lanes that know one sum

  __device__ static int lane() { return lane_id() % kLanes; }
  __device__ static int channel(int quad) { return (lane() + kLanes * quad) * 4; }
  /// First of the lane's rows, counted from the warp's first.
  __device__ static int group_row() { return lane_id() / kLanes * kTileRows; }

  // After a round of sums a lane speaks for one row: the lower half of its group knows the first
  // vector's product with it, the upper half the second one's.
  __device__ static int row() { return group_row() + lane() / kShare % kTileRows; }
  __device__ static bool upper() { return lane() >= kLanes / 2; }
  __device__ static bool speaks() { return lane() % kShare == 0; }
  /// The value of the lane in the lower half that speaks for the same row.
  __device__ static float from_lower(float x) {
    return __shfl_sync(kAllLanes, x, lane_id() & ~(kLanes / 2));
  }
};

template <typename Tile>
struct KdaTileRows {
  float s[kTileRows][Tile::kElems];
};

/// Rows on their way to the registers of a block's warps, as they lie in memory: the quads of a
/// thread are kThreads apart, and no thread sees another one's.
template <typename Tile, int kThreads>
struct KdaTileStage {
  uint4 quad[kTileRows][Tile::kQuads][kThreads];
};

/// Four elements as they lie in memory, whatever their stride.
__device__ inline uint4 gather_quad_bits(const DeviceView<4>& view, int64_t at) {
  const int64_t step = view.step();
  if (view.dtype == DType::kF32) {
    const auto* data = static_cast<const uint32_t*>(view.data) + at;
    return make_uint4(data[0], data[step], data[2 * step], data[3 * step]);
  }
  const auto* data = static_cast<const uint16_t*>(view.data) + at;
  return make_uint4(data[0] | static_cast<uint32_t>(data[step]) << 16,
                    data[2 * step] | static_cast<uint32_t>(data[3 * step]) << 16, 0, 0);
}

/// Which rows of S a warp works on: [first, first + kWarpRows) of (slot, j), of V rows in all.
struct KdaTileAt {
  int64_t slot, j, first;
  int V;
  bool fresh;  // zeros, whatever the slot holds
};

/// Starts the way of the warp's rows to the stage; zeros behind K and V.
template <typename Tile, int kThreads>
__device__ void fetch_kda_tile(const DeviceView<4>& state, int K, const KdaTileAt& at,
                               KdaTileStage<Tile, kThreads>& stage) {
  const int64_t row = at.first + Tile::group_row();
  const int64_t base = state.offset(at.slot, at.j, row);
  const bool narrow = state.dtype != DType::kF32;
  const auto* data = static_cast<const char*>(state.data);
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
#pragma unroll
    for (int i = 0; i < Tile::kQuads; ++i) {
      const int c = Tile::channel(i);
      const bool live = !at.fresh && row + r < at.V && c < K;
      uint4& to = stage.quad[r][i][threadIdx.x];
      const int64_t from = live ? base + r * state.stride[2] + c * state.step() : 0;
      if (state.packed) {
        copy_quad_async(&to, data + from * (narrow ? 2 : 4), narrow, live);
      } else {
        to = live ? gather_quad_bits(state, from) : make_uint4(0, 0, 0, 0);
      }
    }
  }
}

/// Takes what fetch_kda_tile brought; the stage is free for the next rows then.
template <typename Tile, int kThreads>
__device__ void take_kda_tile(const KdaTileStage<Tile, kThreads>& stage, DType dtype,
                              KdaTileRows<Tile>& rows) {
  wait_async_copies();
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
#pragma unroll
    for (int i = 0; i < Tile::kQuads; ++i) {
      widen_quad(stage.quad[r][i][threadIdx.x], dtype, rows.s[r] + 4 * i);
    }
  }
}

/// S <- S diag(alpha) + u k^T; alpha and k [kChannels] and the u of the warp's rows in shared memory.
template <typename Tile>
__device__ void update_kda_tile(const float* alpha, const float* k, const float* u,
                                KdaTileRows<Tile>& rows) {
  const float4 four = *reinterpret_cast<const float4*>(u + Tile::group_row());
  const float of_row[kTileRows] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int i = 0; i < Tile::kQuads; ++i) {
    const float4 a = *reinterpret_cast<const float4*>(alpha + Tile::channel(i));
    const float4 b = *reinterpret_cast<const float4*>(k + Tile::channel(i));
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      float* s = rows.s[r] + 4 * i;
      s[0] = fmaf(of_row[r], b.x, s[0] * a.x);
      s[1] = fmaf(of_row[r], b.y, s[1] * a.y);
      s[2] = fmaf(of_row[r], b.z, s[2] * a.z);
      s[3] = fmaf(of_row[r], b.w, s[3] * a.w);
    }
  }
}

/// False when a finite value became infinite.
template <typename Tile>
__device__ bool store_kda_tile(const DeviceView<4>& state, int K, const KdaTileAt& at,
                               const KdaTileRows<Tile>& rows) {
  const int64_t row = at.first + Tile::group_row();
  const int64_t base = state.offset(at.slot, at.j, row);
  bool fits = true;
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
#pragma unroll
    for (int i = 0; i < Tile::kQuads; ++i) {
      const int c = Tile::channel(i);
      if (row + r >= at.V || c >= K) continue;
      fits &= store_quad(state, base + r * state.stride[2] + c * state.step(), rows.s[r] + 4 * i);
    }
  }
  return fits;
}

/// S x (lower half of a group) and S y (upper half) of the row that the lane speaks for; x and y
/// [kChannels] in shared memory.
template <typename Tile>
__device__ float kda_tile_products(const KdaTileRows<Tile>& rows, const float* x, const float* y) {
  float sums[2 * kTileRows] = {};
#pragma unroll
  for (int i = 0; i < Tile::kQuads; ++i) {
    const float4 a = *reinterpret_cast<const float4*>(x + Tile::channel(i));
    const float4 b = *reinterpret_cast<const float4*>(y + Tile::channel(i));
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const float* s = rows.s[r] + 4 * i;
      float& p = sums[r];
      float& o = sums[kTileRows + r];
      p = fmaf(s[3], a.w, fmaf(s[2], a.z, fmaf(s[1], a.y, fmaf(s[0], a.x, p))));
      o = fmaf(s[3], b.w, fmaf(s[2], b.z, fmaf(s[1], b.y, fmaf(s[0], b.x, o))));
    }
  }
  return transpose_sum<2 * kTileRows, Tile::kLanes>(sums);
}

}  // namespace linestate
