// The one routine that moves a convolution window on a GPU: update, prefill, commit and snapshots
// use it. One thread moves one channel.
#pragma once

#include <cstdint>

#include "cuda/device_rows.cuh"
#include "cuda/device_view.cuh"

namespace linestate {

/// What one thread moves.
struct WindowDevice {
  DeviceRows rows;
  DeviceSnapshots snapshots;
  DeviceView<3> window;  // [P, channels, W-1]
  DeviceView<2> x;       // [T, channels]
  int64_t channels;
  int32_t tail;  // W - 1, at most 3
};

/// Column j of (window of `row.slot` ++ inputs) behind `inputs` inputs, as the bits that the window
/// stores: a 16-bit window has the inputs' dtype, an f32 one holds them exactly.
template <typename TokenAt>
__device__ uint32_t window_bits(const WindowDevice& p, const DeviceRow& row, int64_t c, int64_t j,
                                int64_t inputs, const TokenAt& token_at) {
  const int64_t source = inputs + j;
  const bool narrow = p.window.dtype != DType::kF32;
  if (source >= p.tail) {
    const int64_t at = p.x.offset(token_at(source - p.tail), c);
    if (narrow) return static_cast<const uint16_t*>(p.x.data)[at];
    if (p.x.dtype == DType::kF32) return static_cast<const uint32_t*>(p.x.data)[at];
    return __float_as_uint(load_f32(p.x.data, p.x.dtype, at));
  }
  if (row.fresh) return 0;
  const int64_t at = p.window.offset(row.slot, c, source);
  return narrow ? static_cast<const uint16_t*>(p.window.data)[at]
                : static_cast<const uint32_t*>(p.window.data)[at];
}

/// The window of slot `to` becomes the last W-1 of (window of row.slot ++ `inputs` inputs). All of
/// it is read before any of it is written, so `to` may be the row's own slot.
template <typename TokenAt>
__device__ void write_window(const WindowDevice& p, const DeviceRow& row, int64_t to, int64_t c,
                             int64_t inputs, const TokenAt& token_at) {
  uint32_t bits[3];
#pragma unroll
  for (int j = 0; j < 3; ++j) {
    if (j < p.tail) bits[j] = window_bits(p, row, c, j, inputs, token_at);
  }
#pragma unroll
  for (int j = 0; j < 3; ++j) {
    if (j >= p.tail) continue;
    const int64_t at = p.window.offset(to, c, j);
    if (p.window.dtype == DType::kF32) {
      static_cast<uint32_t*>(p.window.data)[at] = bits[j];
    } else {
      static_cast<uint16_t*>(p.window.data)[at] = static_cast<uint16_t>(bits[j]);
    }
  }
}

/// Channel c of row n: the snapshots wanted within `reach` inputs, then the row's own window.
template <typename TokenAt>
__device__ void move_window(const WindowDevice& p, int64_t n, const DeviceRow& row, int64_t c,
                            int64_t reach, const TokenAt& token_at) {
  if (!row.live) return;
  for (int64_t m = 0; m < p.snapshots.count; ++m) {
    const int64_t inputs = snapshot_after(p.snapshots, p.rows, n, row, reach, m);
    if (inputs == kNoSnapshot) continue;
    write_window(p, row, p.snapshots.slot.at(m), c, inputs, token_at);
  }
  if (reach > 0 || row.fresh) write_window(p, row, row.slot, c, reach, token_at);
}

}  // namespace linestate
