// Dense products in registers: tiles of a few rows by one Group of columns. Every element is one
// chain of multiply-adds, k rising, so its bits depend on its own row and column alone and not on
// the tile's height. Compiled once per instruction set, see simd_inl.h.
#if defined(LINESTATE_CPU_SIMD_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESTATE_CPU_SIMD_TILE_INL_H_
#undef LINESTATE_CPU_SIMD_TILE_INL_H_
#else
#define LINESTATE_CPU_SIMD_TILE_INL_H_
#endif

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

/// Rows of a tile: enough independent chains to hide the latency of a multiply-add, and few enough
/// for the registers. Sizes that tiles walk over (16 and its multiples) are multiples of it.
inline constexpr int kTileRows = kVecLanes == 16 ? 8 : kVecLanes == 8 ? 4 : 2;

struct Tile {
  Group row[kTileRows];
};

/// tile[r] += sum_k a[r * a_row + k * a_k] * b[k * b_pitch .. + 16], k in [0, count).
HWY_INLINE void tile_add(Tile& tile, const float* HWY_RESTRICT a, int64_t a_row, int64_t a_k,
                         const float* HWY_RESTRICT b, int64_t b_pitch, int64_t count) {
  Tile sum = tile;
  for (int64_t k = 0; k < count; ++k) {
    const Group columns = group_load(b);
    for (int r = 0; r < kTileRows; ++r) {
      sum.row[r] = mul_add(group_of(a[r * a_row]), columns, sum.row[r]);
    }
    a += a_k;
    b += b_pitch;
  }
  tile = sum;
}

/// The square on the diagonal: row r takes k <= r only. b rows are a Group apart.
HWY_INLINE void tile_add_triangle(Tile& tile, const float* HWY_RESTRICT a, int64_t a_row,
                                  const float* HWY_RESTRICT b) {
  for (int k = 0; k < kTileRows; ++k) {
    const Group columns = group_load(b + k * kGroup);
    for (int r = k; r < kTileRows; ++r) {
      tile.row[r] = mul_add(group_of(a[r * a_row + k]), columns, tile.row[r]);
    }
  }
}

/// out[c * out_pitch + r] = in[r * in_pitch + c] for rows and columns that are multiples of 4.
HWY_INLINE void transpose(const float* HWY_RESTRICT in, int64_t in_pitch, int64_t rows,
                          int64_t columns, float* HWY_RESTRICT out, int64_t out_pitch) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * out_pitch + r] = in[r * in_pitch + c];
  }
#else
  const hn::FixedTag<float, 4> d4;
  const hn::RepartitionToWide<decltype(d4)> d2;
  for (int64_t r = 0; r < rows; r += 4) {
    for (int64_t c = 0; c < columns; c += 4) {
      const float* from = in + r * in_pitch + c;
      const auto r0 = hn::LoadU(d4, from);
      const auto r1 = hn::LoadU(d4, from + in_pitch);
      const auto r2 = hn::LoadU(d4, from + 2 * in_pitch);
      const auto r3 = hn::LoadU(d4, from + 3 * in_pitch);
      const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d4, r0, r1));
      const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d4, r2, r3));
      const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d4, r0, r1));
      const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d4, r2, r3));
      float* to = out + c * out_pitch + r;
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, low01, low23)), d4, to);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, low01, low23)), d4, to + out_pitch);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, high01, high23)), d4, to + 2 * out_pitch);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, high01, high23)), d4, to + 3 * out_pitch);
    }
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
