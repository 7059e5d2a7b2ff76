// Decode at memory speed, for D = 128. A block takes some columns of one head's state, a lane four
// of them in sixteen rows: all its loads are on their way before it does anything else. Sums run
// over the rows of one class (row % 8) first and then over the classes, pair by pair: the order of
// lightning_lane_step.cuh, whatever the split.
#pragma once

#include <type_traits>

#include "base/int_math.h"
#include "cuda/fast_divider.h"
#include "cuda/launch.cuh"
#include "ops/lightning/lightning_lane_step.cuh"

namespace linestate {

inline constexpr int kLightningTileWidth = 128;

struct LightningDecodeTiles {
  FastDivider heads;
  bool overlap;
};

template <bool kNarrow, int kSplit>
struct LightningTile {
  static constexpr int kWidth = kLightningTileWidth;
  static constexpr int kColumns = kWidth / kSplit;
  static constexpr int kLanes = kColumns / 4;               // lanes of one row
  static constexpr int kWarps = kLightningGroups / kSplit;  // kSplit classes a warp
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = kWidth / kLightningGroups;  // of a lane

  struct Shared {
    float k[kWidth];
    float q[kWidth];  // times scale
    float4 partial[kWarps][kLanes];
    LightningDecay lambda;
  };

  __device__ static int column() { return lane_id() % kLanes * 4; }
  __device__ static int first_row() {
    return static_cast<int>(threadIdx.x) / 32 * kSplit + lane_id() / kLanes;
  }

  /// The lane's first element in (slot, h); its other rows follow 8 kWidth apart.
  __device__ static int64_t origin(const LightningDevice& p, int64_t slot, int64_t h,
                                   int64_t first) {
    return p.state.offset(slot, h) + first_row() * kWidth + first + column();
  }

  __device__ static void load(const LightningDevice& p, int64_t at, uint4 (&bits)[kRows]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      bits[i] = load_quad_bits(p.state.data, kNarrow, at + i * kLightningGroups * kWidth);
    }
  }

  /// Four columns of the lane's row i. False when a finite value became infinite.
  __device__ static bool store(const LightningDevice& p, int64_t at, int i, const float (&s)[4]) {
    const int64_t to = at + i * kLightningGroups * kWidth;
    if constexpr (kNarrow) return store_narrow_quad(p.state.data, p.state.dtype, to, s);
    *reinterpret_cast<float4*>(static_cast<float*>(p.state.data) + to) =
        make_float4(s[0], s[1], s[2], s[3]);
    return true;
  }

  /// What the lane has stored once more, to another slot.
  __device__ static void copy(const LightningDevice& p, int64_t from, int64_t to) {
    using Quad = std::conditional_t<kNarrow, uint2, uint4>;
    constexpr int kStep = kLightningGroups * kWidth / 4;
    auto* quads = static_cast<Quad*>(p.state.data);
    for (int i = 0; i < kRows; ++i) quads[to / 4 + i * kStep] = quads[from / 4 + i * kStep];
  }

  /// Sum over the classes; the first kLanes threads get it.
  __device__ static void sum(Shared& shared, float (&o)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int mask = kLanes; mask < 32; mask *= 2) {
        o[e] += __shfl_xor_sync(kAllLanes, o[e], mask);
      }
    }
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (lane_id() < kLanes) shared.partial[warp][lane_id()] = make_float4(o[0], o[1], o[2], o[3]);
    __syncthreads();
    if (threadIdx.x >= kLanes) return;
    float4 part[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) part[w] = shared.partial[w][lane_id()];
#pragma unroll
    for (int step = 1; step < kWarps; step *= 2) {
#pragma unroll
      for (int w = 0; w < kWarps; w += 2 * step) {
        part[w].x += part[w + step].x;
        part[w].y += part[w + step].y;
        part[w].z += part[w + step].z;
        part[w].w += part[w + step].w;
      }
    }
    o[0] = part[0].x;
    o[1] = part[0].y;
    o[2] = part[0].z;
    o[3] = part[0].w;
  }
};

/// A token as a thread of the block loads it: four channels of k or of q, four of v, the slope.
struct LightningTokenBits {
  uint4 kq, v;
  float slope;
};

template <typename Tile>
__device__ LightningTokenBits load_lightning_token_bits(const LightningDevice& p, int64_t n,
                                                        int64_t h, int64_t first) {
  const bool narrow = p.q.dtype != DType::kF32;
  LightningTokenBits bits;
  bits.kq = make_uint4(0, 0, 0, 0);
  const int c = lane_id() * 4;
  if (threadIdx.x < 32) bits.kq = load_quad_bits(p.k.data, narrow, p.k.offset(n, h, c));
  if (threadIdx.x / 32 == 1) bits.kq = load_quad_bits(p.q.data, narrow, p.q.offset(n, h, c));
  bits.v = load_quad_bits(p.v.data, narrow, p.v.offset(n, h, first + Tile::column()));
  bits.slope = load_at(p.slopes, h);
  return bits;
}

template <typename Shared>
__device__ void share_lightning_token(const LightningDevice& p, const LightningTokenBits& bits,
                                      Shared& shared) {
  if (threadIdx.x >= 64) return;
  const bool is_q = threadIdx.x >= 32;
  float x[4];
  widen_quad(bits.kq, p.q.dtype, x);
  const float factor = is_q ? p.scale : 1.0f;
  float* to = (is_q ? shared.q : shared.k) + lane_id() * 4;
#pragma unroll
  for (int e = 0; e < 4; ++e) to[e] = x[e] * factor;
  if (threadIdx.x == 32) shared.lambda = lightning_decay(bits.slope, 1);
}

template <bool kNarrow, int kSplit>
__global__ void __launch_bounds__(256 / kSplit, 2 * kSplit)
    lightning_decode_tile_kernel(const __grid_constant__ LightningDevice p,
                                 const __grid_constant__ LightningDecodeTiles tiles) {
  using Tile = LightningTile<kNarrow, kSplit>;
  __shared__ typename Tile::Shared shared;
  uint32_t head;
  const int64_t n = tiles.heads.divide(blockIdx.x / kSplit, head);
  const int64_t h = head;
  const int64_t first = static_cast<int64_t>(blockIdx.x % kSplit) * Tile::kColumns;
  LightningTokenBits token;
  if (!tiles.overlap) token = load_lightning_token_bits<Tile>(p, n, h, first);
  const bool reports = first == 0 && h == 0 && threadIdx.x < 32;
  const DeviceRow row = read_decode_row(p.rows, n, reports ? p.status : nullptr);
  const int64_t at = Tile::origin(p, row.slot, h, first);
  uint4 bits[Tile::kRows] = {};
  if (row.valid > 0 && !row.fresh) Tile::load(p, at, bits);
  if (tiles.overlap) {
    wait_for_earlier_kernel();
    token = load_lightning_token_bits<Tile>(p, n, h, first);
  }
  admit_next_kernel();
  if (reports) report_snapshots(p.snapshots, p.rows, n, row, row.valid, p.status);
  float o[4] = {};
  const int64_t out_at = p.out.offset(n, h, first + Tile::column());
  if (row.valid == 0) {
    if (threadIdx.x < Tile::kLanes) store_quad(p.out, out_at, o);
    if (!row.live || !row.fresh) return;
    for (int i = 0; i < Tile::kRows; ++i) Tile::store(p, at, i, o);
    return;
  }
  share_lightning_token(p, token, shared);
  __syncthreads();
  const LightningDecay lambda = shared.lambda;
  float v[4];
  widen_quad(token.v, p.v.dtype, v);
  bool fits = true;
#pragma unroll
  for (int i = 0; i < Tile::kRows; ++i) {
    const int r = Tile::first_row() + i * kLightningGroups;
    float s[4];
    widen_quad(bits[i], kNarrow ? p.state.dtype : DType::kF32, s);
    step_lightning_row(shared.k[r], shared.q[r], v, lambda, s, o);
    fits &= Tile::store(p, at, i, s);
  }
  if (!fits) raise_overflow(p.status, n, row.slot, p.layer);
  for (int64_t m = 0; m < p.snapshots.count; ++m) {
    if (snapshot_after(p.snapshots, p.rows, n, row, 1, m) != 1) continue;
    Tile::copy(p, at, Tile::origin(p, p.snapshots.slot.at(m), h, first));
  }
  Tile::sum(shared, o);
  if (threadIdx.x < Tile::kLanes) store_quad(p.out, out_at, o);
}

template <bool kNarrow, int kSplit>
Status run_lightning_decode_tiles(const LightningDevice& p, int64_t N, const ExecContext& context) {
  const LightningDecodeTiles tiles{FastDivider(p.H), launches_overlap(context)};
  const LaunchShape shape{grid_of(N * p.H * kSplit), 256 / kSplit, 1, 0, true};
  return launch_shaped("lightning_decode", lightning_decode_tile_kernel<kNarrow, kSplit>, shape,
                       context, p, tiles);
}

inline Status run_lightning_decode_tiles(const LightningDevice& p, int64_t N,
                                         const ExecContext& context) {
  return p.state.dtype == DType::kF32 ? run_lightning_decode_tiles<false, 2>(p, N, context)
                                      : run_lightning_decode_tiles<true, 2>(p, N, context);
}

/// What the kernel's loads and stores rely on. Depends on the described problem alone.
inline bool lightning_tiles_fit(const LightningParams& p) {
  bool fits = p.q.shape[2] == kLightningTileWidth && p.state.stride[2] == kLightningTileWidth &&
              device_view<4>(p.state).packed && p.q.shape[0] * p.q.shape[1] < (1 << 28);
  for (const ConstTensorView& x : {p.q, p.k, p.v}) fits = fits && device_view<3>(x).packed;
  return fits;
}

}  // namespace linestate
