// Planes as kernels take them: several in one launch, each slot cut into the longest runs that its
// layout allows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/device_flags.cuh"
#include "cuda/device_view.cuh"
#include "cuda/launch.cuh"
#include "ops/state_ops/slot_walk.h"

namespace linestate {

/// One plane as a destination, and as its own or another source.
struct SlotPlane {
  char* dst;
  const char* src;
  int64_t dst_slots, src_slots;
  int64_t dst_pitch, src_pitch;  // bytes from slot to slot
  int64_t size[4], dst_stride[4], src_stride[4];
  int64_t count;  // elements of a slot
  int32_t index;  // among all planes of the call
  int32_t bytes;  // of a destination element; kWide when elements are moved in groups
  DType dst_dtype, src_dtype;
};

inline constexpr int32_t kWide = 16;  // bytes

inline constexpr int kPlanesAtOnce = 64;
inline constexpr int kSlotThreads = 256;
inline constexpr int kSlotAtOnce = 8;  // elements of a thread that are on their way at once
inline constexpr int64_t kSlotPiece = kSlotThreads * kSlotAtOnce;  // elements of one block

struct SlotPlanes {
  SlotPlane plane[kPlanesAtOnce];
  IndexView dst_ids, src_ids;
  int64_t ids;
  DeviceStatus* status;
};

/// Takes elements in groups of kWide bytes where both layouts allow it: what counts elements and
/// strides then counts groups.
inline void widen_slot_plane(SlotPlane& plane) {
  const int64_t each = kWide / plane.bytes;
  const auto wide = [](int64_t bytes) { return bytes % kWide == 0; };
  bool fits = plane.dst_dtype == plane.src_dtype && plane.size[3] % each == 0 &&
              plane.dst_stride[3] == 1 && plane.src_stride[3] == 1 && wide(plane.dst_pitch) &&
              wide(plane.src_pitch) && wide(reinterpret_cast<intptr_t>(plane.dst)) &&
              wide(reinterpret_cast<intptr_t>(plane.src));
  for (int d = 0; d < 3; ++d) {
    if (plane.size[d] == 1) continue;
    fits = fits && plane.dst_stride[d] % each == 0 && plane.src_stride[d] % each == 0;
  }
  if (!fits) return;
  plane.size[3] /= each;
  plane.count /= each;
  for (int d = 0; d < 3; ++d) {
    plane.dst_stride[d] /= each;
    plane.src_stride[d] /= each;
  }
  plane.bytes = kWide;
}

inline SlotPlane slot_plane(const ConstTensorView& dst, const ConstTensorView& src, size_t index) {
  const SlotWalk walk(dst, src);
  SlotPlane plane{};
  plane.dst = static_cast<char*>(const_cast<void*>(dst.data));
  plane.src = static_cast<const char*>(src.data);
  plane.dst_slots = dst.shape[0];
  plane.src_slots = src.shape[0];
  plane.dst_pitch = dst.stride[0] * dtype_bytes(dst.dtype);
  plane.src_pitch = src.stride[0] * dtype_bytes(src.dtype);
  plane.count = 1;
  for (size_t d = 0; d < 4; ++d) {
    plane.size[d] = walk.dims()[d].size;
    plane.dst_stride[d] = walk.dims()[d].dst;
    plane.src_stride[d] = walk.dims()[d].src;
    plane.count *= plane.size[d];
  }
  plane.index = static_cast<int32_t>(index);
  plane.bytes = static_cast<int32_t>(dtype_bytes(dst.dtype));
  plane.dst_dtype = dst.dtype;
  plane.src_dtype = src.dtype;
  widen_slot_plane(plane);
  return plane;
}

struct SlotElement {
  int64_t dst, src;  // elements behind the slot's first
};

__device__ inline SlotElement slot_element(const SlotPlane& plane, int64_t i) {
  if (plane.size[3] == plane.count) return {i * plane.dst_stride[3], i * plane.src_stride[3]};
  SlotElement at{0, 0};
#pragma unroll
  for (int d = 3; d >= 0; --d) {
    if (plane.size[d] == 1) continue;
    const int64_t k = i % plane.size[d];
    i /= plane.size[d];
    at.dst += k * plane.dst_stride[d];
    at.src += k * plane.src_stride[d];
  }
  return at;
}

/// Launches `kernel` over all planes, kPlanesAtOnce at a time; fill(i) makes plane i.
template <typename Kernel, typename Fill>
Status run_slot_planes(const char* name, Kernel kernel, size_t planes, SlotPlanes batch,
                       const ExecContext& context, const Fill& fill) {
  for (size_t begin = 0; begin < planes && batch.ids > 0; begin += kPlanesAtOnce) {
    const size_t end = std::min(planes, begin + kPlanesAtOnce);
    int64_t most = 0;
    for (size_t i = begin; i < end; ++i) {
      batch.plane[i - begin] = fill(i);
      most = std::max(most, batch.plane[i - begin].count);
    }
    const int64_t pieces = std::min<int64_t>((most + kSlotPiece - 1) / kSlotPiece, 65535);
    const dim3 grid(grid_of(batch.ids), static_cast<unsigned>(end - begin),
                    static_cast<unsigned>(pieces));
    LINESTATE_RETURN_IF_ERROR(launch(name, kernel, grid, kSlotThreads, context, batch));
  }
  return {};
}

}  // namespace linestate
