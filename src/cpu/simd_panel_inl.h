// Tiles one Group of columns wide, for operands in panels of 16 columns, and the transpose that
// makes a panel. Compiled once per instruction set, see simd_inl.h.
#if defined(LINESTATE_CPU_SIMD_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESTATE_CPU_SIMD_PANEL_INL_H_
#undef LINESTATE_CPU_SIMD_PANEL_INL_H_
#else
#define LINESTATE_CPU_SIMD_PANEL_INL_H_
#endif

#include "cpu/simd_tile_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

/// Rows of such a tile: enough independent chains to hide the latency of a multiply-add, and few
/// enough for the registers. Sizes that tiles walk over (16 and its multiples) are multiples of it.
inline constexpr int kPanelRows = kVecLanes == 16 ? 8 : kVecLanes == 8 ? 4 : 2;
using PanelTile = Tile<kPanelRows, 1>;

HWY_INLINE PanelTile panel_zero() {
  PanelTile tile;
  for (int r = 0; r < kPanelRows; ++r) tile.at[r][0] = group_of(0.0f);
  return tile;
}

/// tile += left right, `length` terms; rows of `right` are `pitch` apart.
HWY_INLINE void panel_multiply(const TileLeft& left, const float* right, int64_t pitch,
                               int64_t length, PanelTile& tile) {
  tile_multiply(left, TileRight{right, pitch, 0}, length, tile);
}

/// The square on the diagonal: row r takes terms l <= r only. Rows of `right` are a Group apart.
HWY_INLINE void panel_multiply_triangle(const TileLeft& left, const float* right, PanelTile& tile) {
  for (int l = 0; l < kPanelRows; ++l) {
    const Group columns = group_load(right + int64_t{l} * kGroup);
    for (int r = l; r < kPanelRows; ++r) {
      const Group x = group_of(left.data[r * left.row + l * left.col]);
      tile.at[r][0] = mul_add(x, columns, tile.at[r][0]);
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
