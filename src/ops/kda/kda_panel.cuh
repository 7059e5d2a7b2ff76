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
inline constexpr int kPanelRows = 4;

template <int kLanesIn, int kQuadsIn>
struct KdaPanel {
  static constexpr int kLanes = kLanesIn;
  static constexpr int kQuads = kQuadsIn;
  static constexpr int kElems = 4 * kQuads;
  static constexpr int kChannels = kLanes * kElems;
  static constexpr int kWarpRows = 32 / kLanes * kPanelRows;
  static constexpr int kShare = kLanes / (2 * kPanelRows);  // lanes that know one sum

  __device__ static int lane() { return lane_id() % kLanes; }
  __device__ static int channel(int quad) { return (lane() + kLanes * quad) * 4; }
  /// First of the lane's rows, counted from the warp's first.
  __device__ static int group_row() { return lane_id() / kLanes * kPanelRows; }

  // After a round of sums a lane speaks for one row: the lower half of its group knows the first
  // vector's product with it, the upper half the second one's.
  __device__ static int row() { return group_row() + lane() / kShare % kPanelRows; }
  __device__ static bool upper() { return lane() >= kLanes / 2; }
  __device__ static bool speaks() { return lane() % kShare == 0; }
  /// The value of the lane in the lower half that speaks for the same row.
  __device__ static float from_lower(float x) {
    return __shfl_sync(kAllLanes, x, lane_id() & ~(kLanes / 2));
  }
};

template <typename Panel>
struct KdaPanelRows {
  float s[kPanelRows][Panel::kElems];
};

/// Rows on their way to the registers of a block's warps, as they lie in memory: the quads of a
/// thread are kThreads apart, and no thread sees another one's.
template <typename Panel, int kThreads>
struct KdaPanelStage {
  uint4 quad[kPanelRows][Panel::kQuads][kThreads];
};

/// Four elements as they lie in memory, whatever their stride; a call, because it is rare.
__device__ __noinline__ inline uint4 gather_quad_bits(const void* from, bool narrow, int64_t at,
                                                      int64_t step) {
  if (!narrow) {
    const auto* data = static_cast<const uint32_t*>(from) + at;
    return make_uint4(data[0], data[step], data[2 * step], data[3 * step]);
  }
  const auto* data = static_cast<const uint16_t*>(from) + at;
  return make_uint4(data[0] | static_cast<uint32_t>(data[step]) << 16,
                    data[2 * step] | static_cast<uint32_t>(data[3 * step]) << 16, 0, 0);
}

/// The lane's quads of a vector of any stride into shared memory, as they lie in memory; zeros
/// behind K.
template <typename Map>
__device__ __noinline__ void gather_lane_bits(const void* from, bool narrow, int64_t at,
                                              int64_t step, int K, uint4* to) {
  for (int i = 0; i < Map::kQuads; ++i) {
    const int c = Map::channel(i);
    to[c / 4] = make_uint4(0, 0, 0, 0);
    if (c < K) to[c / 4] = gather_quad_bits(from, narrow, at + c * step, step);
  }
}

/// Which rows of S a warp works on: [first, first + kWarpRows) of (slot, j), of V rows in all.
struct KdaPanelAt {
  int64_t slot;
  int j, first, V;
  bool fresh;  // zeros, whatever the slot holds
};

template <bool kNarrow, typename Panel, int kThreads>
__device__ void fetch_packed_panel(const char* from, int64_t pitch, int rows, int channels,
                                   KdaPanelStage<Panel, kThreads>& stage) {
#pragma unroll
  for (int r = 0; r < kPanelRows; ++r) {
#pragma unroll
    for (int i = 0; i < Panel::kQuads; ++i) {
      const bool live = r < rows && Panel::kLanes * 4 * i < channels;
      copy_quad_async(&stage.quad[r][i][threadIdx.x], from + Panel::kLanes * (kNarrow ? 8 : 16) * i,
                      kNarrow, live);
    }
    if (r + 1 < rows) from += pitch;
  }
}

/// Starts the way of the warp's rows to the stage; zeros behind K and V.
template <typename Panel, int kThreads>
__device__ void fetch_kda_panel(const DeviceView<4>& state, int K, const KdaPanelAt& at,
                                KdaPanelStage<Panel, kThreads>& stage) {
  const int row = at.first + Panel::group_row();
  const int c = Panel::channel(0);
  const bool narrow = state.dtype != DType::kF32;
  const int rows = at.fresh ? 0 : at.V - row;  // the lane's, if less than kPanelRows
  const int64_t base = rows > 0 && c < K ? state.offset(at.slot, at.j, row) + c * state.step() : 0;
  if (state.packed) {
    const int64_t bytes = narrow ? 2 : 4;
    const char* from = static_cast<const char*>(state.data) + base * bytes;
    if (narrow) {
      fetch_packed_panel<true>(from, state.stride[2] * bytes, rows, K - c, stage);
    } else {
      fetch_packed_panel<false>(from, state.stride[2] * bytes, rows, K - c, stage);
    }
    return;
  }
#pragma unroll 1
  for (int n = 0; n < kPanelRows * Panel::kQuads; ++n) {
    const int r = n / Panel::kQuads;
    const int i = n % Panel::kQuads;
    uint4& to = stage.quad[r][i][threadIdx.x];
    to = make_uint4(0, 0, 0, 0);
    if (r >= rows || Panel::channel(i) >= K) continue;
    const int64_t from = base + r * state.stride[2] + Panel::kLanes * 4 * i * state.step();
    to = gather_quad_bits(state.data, narrow, from, state.step());
  }
}

/// Takes what fetch_kda_panel brought; the stage is free for the next rows then.
template <typename Panel, int kThreads>
__device__ void take_kda_panel(const KdaPanelStage<Panel, kThreads>& stage, DType dtype,
                               KdaPanelRows<Panel>& rows) {
  const auto take = [&](DType as) {
#pragma unroll
    for (int r = 0; r < kPanelRows; ++r) {
#pragma unroll
      for (int i = 0; i < Panel::kQuads; ++i) {
        widen_quad(stage.quad[r][i][threadIdx.x], as, rows.s[r] + 4 * i);
      }
    }
  };
  wait_async_copies();
  if (dtype == DType::kF32) return take(DType::kF32);
  if (dtype == DType::kBF16) return take(DType::kBF16);
  take(DType::kF16);
}

/// S <- S diag(alpha) + u k^T; alpha and k [kChannels] and the u of the warp's rows in shared
/// memory.
template <typename Panel>
__device__ void update_kda_panel(const float* alpha, const float* k, const float* u,
                                 KdaPanelRows<Panel>& rows) {
  const float4 four = *reinterpret_cast<const float4*>(u + Panel::group_row());
  const float of_row[kPanelRows] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int i = 0; i < Panel::kQuads; ++i) {
    const float4 a = *reinterpret_cast<const float4*>(alpha + Panel::channel(i));
    const float4 b = *reinterpret_cast<const float4*>(k + Panel::channel(i));
#pragma unroll
    for (int r = 0; r < kPanelRows; ++r) {
      float* s = rows.s[r] + 4 * i;
      s[0] = fmaf(of_row[r], b.x, s[0] * a.x);
      s[1] = fmaf(of_row[r], b.y, s[1] * a.y);
      s[2] = fmaf(of_row[r], b.z, s[2] * a.z);
      s[3] = fmaf(of_row[r], b.w, s[3] * a.w);
    }
  }
}

/// S <- S + u k^T; u of the lane's rows, k [kChannels] in shared memory.
template <typename Panel>
__device__ void add_to_kda_panel(const float (&u)[kPanelRows], const float* k,
                                 KdaPanelRows<Panel>& rows) {
#pragma unroll
  for (int i = 0; i < Panel::kQuads; ++i) {
    const float4 b = *reinterpret_cast<const float4*>(k + Panel::channel(i));
#pragma unroll
    for (int r = 0; r < kPanelRows; ++r) {
      float* s = rows.s[r] + 4 * i;
      s[0] = fmaf(u[r], b.x, s[0]);
      s[1] = fmaf(u[r], b.y, s[1]);
      s[2] = fmaf(u[r], b.z, s[2]);
      s[3] = fmaf(u[r], b.w, s[3]);
    }
  }
}

/// False when a finite value became infinite.
template <typename Panel>
__device__ bool store_kda_panel(const DeviceView<4>& state, int K, const KdaPanelAt& at,
                                const KdaPanelRows<Panel>& rows) {
  const int row = at.first + Panel::group_row();
  const int c = Panel::channel(0);
  int64_t to = state.offset(at.slot, at.j, row) + c * state.step();
  if (state.packed && state.dtype == DType::kF32) {
    auto* data = static_cast<float*>(state.data) + to;
#pragma unroll
    for (int r = 0; r < kPanelRows; ++r, data += state.stride[2]) {
#pragma unroll
      for (int i = 0; i < Panel::kQuads; ++i) {
        const float* s = rows.s[r] + 4 * i;
        if (row + r >= at.V || Panel::channel(i) >= K) continue;
        *reinterpret_cast<float4*>(data + Panel::kLanes * 4 * i) =
            make_float4(s[0], s[1], s[2], s[3]);
      }
    }
    return true;
  }
  bool fits = true;
#pragma unroll
  for (int r = 0; r < kPanelRows; ++r, to += state.stride[2]) {
#pragma unroll
    for (int i = 0; i < Panel::kQuads; ++i) {
      if (row + r >= at.V || Panel::channel(i) >= K) continue;
      fits &= store_quad(state, to + Panel::kLanes * 4 * i * state.step(), rows.s[r] + 4 * i);
    }
  }
  return fits;
}

/// S x (lower half of a group) and S y (upper half) of the row that the lane speaks for; x and y
/// [kChannels] in shared memory.
template <typename Panel>
__device__ float kda_panel_products(const KdaPanelRows<Panel>& rows, const float* x,
                                    const float* y) {
  float sums[2 * kPanelRows] = {};
#pragma unroll
  for (int i = 0; i < Panel::kQuads; ++i) {
    const float4 a = *reinterpret_cast<const float4*>(x + Panel::channel(i));
    const float4 b = *reinterpret_cast<const float4*>(y + Panel::channel(i));
#pragma unroll
    for (int r = 0; r < kPanelRows; ++r) {
      const float* s = rows.s[r] + 4 * i;
      float& p = sums[r];
      float& o = sums[kPanelRows + r];
      p = fmaf(s[3], a.w, fmaf(s[2], a.z, fmaf(s[1], a.y, fmaf(s[0], a.x, p))));
      o = fmaf(s[3], b.w, fmaf(s[2], b.z, fmaf(s[1], b.y, fmaf(s[0], b.x, o))));
    }
  }
  return transpose_sum<2 * kPanelRows, Panel::kLanes>(sums);
}

}  // namespace linestate
