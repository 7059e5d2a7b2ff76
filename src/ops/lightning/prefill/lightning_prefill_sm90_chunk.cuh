// A chunk of the main kernel: S^T goes to shared memory as operands, and becomes outputs.
#pragma once

#include "ops/lightning/prefill/lightning_prefill_sm90.cuh"

namespace linestate::lightning_sm90 {

/// One warpgroup holds the state, two make outputs, of every other chunk each. All move on
/// together, a period a chunk; outputs take two: their products with q, then the one with v.
constexpr int kMainThreads = 384;
/// A chunk is fetched a period ahead and read for two.
constexpr int kStages = 3;

struct Stage {
  uint8_t q[2 * kTile];  // [64 tokens, 128]
  uint8_t k[2 * kTile];
  uint8_t v[kTile];  // [64 tokens, 64]
};

struct Shared {
  Stage stage[kStages];
  uint8_t S[4 * kTile];  // S^T [64, 128], high then low
  Powers powers;
};
static_assert(sizeof(Shared) <= 232448);

__device__ inline void put_state(const Lane& lane, const StateT& S, uint8_t* tiles) {
  const int id = lane.thread % 32;
  const int row = 16 * lane.warp + (id & 15);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    uint32_t high[4];
    uint32_t low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      split_bf16(S[8 * step + 2 * e], S[8 * step + 2 * e + 1], high[e], low[e]);
    }
    const uint32_t at =
        static_cast<uint32_t>(step / 4 * kTile) + tile_offset(row, step % 4 * 16 + (id & 16) / 2);
    store_matrices(shared_address(tiles) + at, high);
    store_matrices(shared_address(tiles) + at + 2 * kTile, low);
  }
}

/// The weighted q k^T as operands; a column behind its row weighs nothing, whatever it holds.
__device__ inline void weigh(const Lane& lane, const Powers& powers, const float (&a)[32],
                             uint32_t (&high)[4][4], uint32_t (&low)[4][4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float x[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int j = 16 * step + 8 * (e / 2) + 2 * lane.t + c;
        const float weight = powers(lane.row(e % 2) - j);
        x[c] = weight == 0.0f ? 0.0f : a[8 * step + 2 * e + c] * weight;
      }
      split_bf16(x[0], x[1], high[step][e], low[step][e]);
    }
  }
}

__device__ inline void store_out(const LightningDevice& p, const Chunks& chunks, int32_t chunk,
                                 int64_t h, int64_t half, const Lane& lane, const float (&o)[32]) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int32_t place = kChunk * chunk + lane.row(e);
    if (!chunks.holds(place)) continue;
    const int64_t at = p.out.offset(chunks.token(place), h, kHalf * half + 2 * lane.t);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float a = p.scale * o[4 * i + 2 * e];
      const float b = p.scale * o[4 * i + 2 * e + 1];
      if (p.out.dtype == DType::kF32) {
        *reinterpret_cast<float2*>(static_cast<float*>(p.out.data) + at + 8 * i) =
            make_float2(a, b);
      } else {
        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.out.data) + at + 8 * i) =
            p.out.dtype == DType::kBF16 ? pack_bf16(a, b) : pack_f16(a, b);
      }
    }
  }
}

/// A chunk's outputs on their way: o has what the state gives, the weights wait for v.
struct Outputs {
  float o[32];
  uint32_t high[4][4];
  uint32_t low[4][4];
};

/// The products with q. Waits for S^T at barrier 2; `fetch` runs while the first is on its way.
template <typename Fetch>
__device__ void begin_outputs(const Lane& lane, const Stage& stage, const Shared& s, int begin,
                              const Fetch& fetch, Outputs& out) {
  const uint32_t q = shared_address(stage.q);
  const uint32_t k = shared_address(stage.k);
  const uint32_t S = shared_address(s.S);
  float a[32];
  pin(a);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint32_t at = step / 4 * kTile + step % 4 * 32;
    wgmma_bf16_64_tiles(a, tile_of_rows(q + at), tile_of_rows(k + at), step > 0);
  }
  wgmma_commit();
  fetch();
  sync_some<2, 256>();
  pin(out.o);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < 16; ++step) {
    const uint32_t at = step % 8 / 4 * kTile + step % 4 * 32;
    wgmma_bf16_64_tiles(out.o, tile_of_rows(q + at), tile_of_rows(S + step / 8 * 2 * kTile + at),
                        step > 0);
  }
  wgmma_commit();
  wgmma_wait_for_all_but_one();
  pin(a);
  weigh(lane, s.powers, a, out.high, out.low);
  wgmma_wait();
  pin(out.o);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const float since = s.powers(lane.row(e) + 1 - begin);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out.o[4 * i + 2 * e] *= since;
      out.o[4 * i + 2 * e + 1] *= since;
    }
  }
}

/// The product with v.
template <typename Fetch>
__device__ void end_outputs(const Stage& stage, const Fetch& fetch, Outputs& out) {
  const uint32_t v = shared_address(stage.v);
  pin(out.o);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint64_t b = tile_of_columns(v + step * 2048, kTile);
    wgmma_bf16_64_columns(out.o, out.high[step], b, true);
    wgmma_bf16_64_columns(out.o, out.low[step], b, true);
  }
  wgmma_commit();
  fetch();
  wgmma_wait();
  pin(out.o);
}

}  // namespace linestate::lightning_sm90
