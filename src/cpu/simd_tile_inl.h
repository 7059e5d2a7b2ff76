// The inner loop of every dense product of the `cpu` rows: a few rows by a few groups of columns,
// accumulators in registers. Compiled once per instruction set, see simd_inl.h.
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

// Most groups a tile may be wide: as many as leave room for six rows of accumulators.
inline constexpr int kTileGroups = kVecLanes == 16 ? 2 : 1;

/// One operand read one element at a time: element (r, l) is data[r * row + l * col].
struct TileLeft {
  const float* data;
  int64_t row;
  int64_t col;
};
/// The other, read a group at a time: group g of row l starts at data[l * row + g * group].
struct TileRight {
  const float* data;
  int64_t row;
  int64_t group;
};

template <int R, int G>
struct Tile {
  Group at[R][G];
};

/// tile[r][g] += sum over l < length of left(r, l) right(l, g). Every element is one chain of
/// (where the target has them, fused) multiplications and additions, l rising: its bits do not
/// depend on the shape of the tile.
template <int R, int G>
HWY_INLINE void tile_multiply(const TileLeft& left, const TileRight& right, int64_t length,
                              Tile<R, G>& tile) {
  const float* a = left.data;
  const float* b = right.data;
  for (int64_t l = 0; l < length; ++l, a += left.col, b += right.row) {
    Group columns[G];
    for (int g = 0; g < G; ++g) columns[g] = group_load(b + g * right.group);
    for (int r = 0; r < R; ++r) {
      const Vec x = vec_of(a[r * left.row]);
      for (int g = 0; g < G; ++g) {
        for (int i = 0; i < kGroupVecs; ++i) {
          tile.at[r][g].v[i] = hn::MulAdd(x, columns[g].v[i], tile.at[r][g].v[i]);
        }
      }
    }
  }
}

/// Rows of the next tile when `left` rows, an even number, remain: as many as registers hold, but
/// never so that a thin tile is left over.
HWY_INLINE int next_tile_rows(int64_t left) {
  if (kGroupVecs > 2 || left < 4) return 2;
  return left < 6 || left == 8 ? 4 : 6;
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
