// Decode at memory speed, for K = 128. A block takes some rows of one head's state: it asks for
// them as soon as it knows the slot, makes the token while they are on their way, and steps them
// once. Small blocks, many of them: the hardware hands them out, and what waits in one is hidden
// behind the others.
#pragma once

#include "base/int_math.h"
#include "cuda/launch.cuh"
#include "ops/kda/kda_tile_step.cuh"

namespace linestate {

struct KdaDecodeTiles {
  FastDivider pieces;  // blocks a head
  FastDivider heads;   // HV
  FastDivider group;   // HV / H
  bool overlap;
};

/// A block's part: rows [first, first + rows) of S of head j of row n.
struct KdaDecodeTask {
  int64_t n, j, h, first;
  int64_t base;  // element of the state where `first` begins
  DeviceRow row;
};

template <bool kNarrow, int kWarps, int kPasses>
struct KdaDecodeBlock {
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kPassRows = kWarps * kStateRows;
  static constexpr int kRows = kPasses * kPassRows;
  static constexpr int kBytes = kRows * kKdaTileRowBytes<kNarrow>;

  struct Shared {
    alignas(128) uint8_t tile[kBytes];
    KdaSharedToken token;
    uint64_t fetched;
  };

  /// Rows that lie in no memory to read: outputs become zero, and the state of a fresh row.
  __device__ static void clear(const KdaDevice& p, const KdaDecodeTask& task) {
    const KdaLaneRows<KdaTileMap> zeros = {};
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = pass * kPassRows + static_cast<int>(threadIdx.x / 32) * kStateRows;
      clear_kda_out<KdaTileMap>(p, task.n, task.j, task.first + row);
      if (!task.row.live || !task.row.fresh) continue;
      store_kda_tile<kNarrow>(p.state, task.base + row * kKdaTileWidth, zeros);
    }
  }

  __device__ static void step(const KdaDevice& p, const KdaDecodeTask& task,
                              const KdaLaneToken<KdaTileMap>& token, int pass, uint32_t v,
                              bool resumes, const uint8_t* tile) {
    const int row = pass * kPassRows + static_cast<int>(threadIdx.x / 32) * kStateRows;
    KdaLaneRows<KdaTileMap> rows = {};
    if (resumes) {
      read_kda_tile<kNarrow>(tile + row * kKdaTileRowBytes<kNarrow>, p.state.dtype, rows);
    }
    const KdaLaneResult result = step_kda_rows<KdaTileMap>(token, widen_bits(v, p.v.dtype), rows);
    store_kda_out<KdaTileMap>(p, task.n, task.j, task.first + row, result.o);
    if (!store_kda_tile<kNarrow>(p.state, task.base + row * kKdaTileWidth, rows)) {
      raise_overflow(p.status, task.n, task.row.slot, p.layer);
    }
    for (int64_t m = 0; m < p.snapshots.count; ++m) {
      if (snapshot_after(p.snapshots, p.rows, task.n, task.row, 1, m) != 1) continue;
      const int64_t to = p.state.offset(p.snapshots.slot.at(m), task.j, task.first + row);
      store_kda_tile<kNarrow>(p.state, to, rows);
    }
  }
};

/// The block's task. Reads the row, nothing else.
template <typename Block>
__device__ KdaDecodeTask kda_decode_task(const KdaDevice& p, const KdaDecodeTiles& tiles) {
  uint32_t piece;
  uint32_t j;
  uint32_t rest;
  const uint32_t n = tiles.heads.divide(tiles.pieces.divide(blockIdx.x, piece), j);
  KdaDecodeTask task;
  task.n = n;
  task.j = j;
  task.h = tiles.group.divide(j, rest);
  task.first = static_cast<int64_t>(piece) * Block::kRows;
  return task;
}

template <bool kNarrow, int kWarps, int kPasses>
__global__ void __launch_bounds__(32 * kWarps, 20 / kWarps)
    kda_decode_tile_kernel(const __grid_constant__ KdaDevice p,
                           const __grid_constant__ KdaDecodeTiles tiles) {
  using Block = KdaDecodeBlock<kNarrow, kWarps, kPasses>;
  __shared__ typename Block::Shared shared;
  const int thread = static_cast<int>(threadIdx.x);
  KdaDecodeTask task = kda_decode_task<Block>(p, tiles);
  const bool makes_token = thread < 32;
  KdaTokenBits bits;
  // The token's loads wait for nobody's slot, and the slot's load for no token.
  if (makes_token && !tiles.overlap) bits = load_kda_token_bits(p, task.n, task.j, task.h);
  const bool reports = task.first == 0 && task.j == 0 && makes_token;
  task.row = read_decode_row(p.rows, task.n, reports ? p.status : nullptr);
  task.base = p.state.offset(task.row.slot, task.j, task.first);
  const bool resumes = task.row.valid > 0 && !task.row.fresh;
  if (resumes) {
    const auto* state = static_cast<const uint8_t*>(p.state.data);
    begin_fetch(shared.tile, state + task.base * (kNarrow ? 2 : 4), Block::kBytes, &shared.fetched,
                thread, Block::kThreads);
  }
  if (tiles.overlap) {
    wait_for_earlier_kernel();
    if (makes_token) bits = load_kda_token_bits(p, task.n, task.j, task.h);
  }
  admit_next_kernel();
  if (reports) report_snapshots(p.snapshots, p.rows, task.n, task.row, task.row.valid, p.status);
  if (task.row.valid == 0) {
    Block::clear(p, task);
    return;
  }
  uint32_t v[kPasses];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int row = pass * Block::kPassRows + thread / 32 * kStateRows;
    const int64_t at = task.first + row + KdaLaneRole<KdaTileMap>::row();
    v[pass] = load_bits(p.v.data, p.v.dtype, p.v.offset(task.n, task.j, at));
  }
  KdaLaneToken<KdaTileMap> token;
  if (makes_token) {
    finish_kda_token_bits(p, bits, token);
    share_kda_token(token, shared.token);
  }
  finish_fetch();
  __syncthreads();
  read_kda_token(shared.token, token);
  if (resumes) wait_fetch(&shared.fetched);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    Block::step(p, task, token, pass, v[pass], resumes, shared.tile);
  }
}

template <bool kNarrow, int kWarps, int kPasses>
Status run_kda_decode_tiles(const KdaDevice& p, int64_t N, const ExecContext& context) {
  const int64_t pieces = p.V / KdaDecodeBlock<kNarrow, kWarps, kPasses>::kRows;
  const KdaDecodeTiles tiles{FastDivider(pieces), FastDivider(p.HV), FastDivider(p.HV / p.H),
                             launches_overlap(context)};
  const LaunchShape shape{grid_of(N * p.HV * pieces), 32 * kWarps, 1, 0, true};
  return launch_shaped("kda_decode", kda_decode_tile_kernel<kNarrow, kWarps, kPasses>, shape,
                       context, p, tiles);
}

/// 16 rows a block in f32; in 16 bits 64, where there are blocks enough, because a token costs as
/// much as the bytes of many rows.
inline Status run_kda_decode_tiles(const KdaDevice& p, int64_t N, const ExecContext& context) {
  if (p.state.dtype == DType::kF32) return run_kda_decode_tiles<false, 2, 1>(p, N, context);
  if (p.V % 64 == 0 && N * p.HV >= 256) return run_kda_decode_tiles<true, 4, 2>(p, N, context);
  return run_kda_decode_tiles<true, 2, 1>(p, N, context);
}

/// Whether tiles serve the problem; the most blocks are those of 16 rows.
inline bool kda_decode_tiles_fit(const KdaParams& params) {
  const int64_t blocks = params.q.shape[0] * params.v.shape[1] * (params.v.shape[2] / 16);
  return blocks < 0x7fffffff && kda_tiles_fit(params);
}

}  // namespace linestate
