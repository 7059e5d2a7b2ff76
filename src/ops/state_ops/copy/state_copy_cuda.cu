#include "ops/state_ops/copy/state_copy_kernels.h"
#include "ops/state_ops/slot_planes.cuh"

namespace linestate {
namespace {

/// Equal dtypes keep bits; others go through f32. False when a finite value became infinite.
__device__ bool copy_element(const SlotPlane& plane, char* to, const char* from,
                             const SlotElement& at) {
  if (plane.dst_dtype != plane.src_dtype) {
    const float value = load_f32(from, plane.src_dtype, at.src);
    store_f32(to, plane.dst_dtype, at.dst, value);
    return !isfinite(value) || isfinite(load_f32(to, plane.dst_dtype, at.dst));
  }
  if (plane.bytes == 4) {
    reinterpret_cast<uint32_t*>(to)[at.dst] = reinterpret_cast<const uint32_t*>(from)[at.src];
  } else if (plane.bytes == 2) {
    reinterpret_cast<uint16_t*>(to)[at.dst] = reinterpret_cast<const uint16_t*>(from)[at.src];
  } else if (plane.bytes == 8) {
    reinterpret_cast<uint64_t*>(to)[at.dst] = reinterpret_cast<const uint64_t*>(from)[at.src];
  } else {
    to[at.dst] = from[at.src];
  }
  return true;
}

/// Elements [begin, end) of a slot, of which the block takes kSlotPiece at most: all of a thread's
/// are read before any is written.
__device__ void copy_groups(const SlotPlane& plane, uint4* to, const uint4* from, int64_t begin,
                            int64_t end) {
  uint4 group[kSlotAtOnce];
  int64_t dst[kSlotAtOnce];
#pragma unroll
  for (int n = 0; n < kSlotAtOnce; ++n) {
    const int64_t e = begin + threadIdx.x + n * kSlotThreads;
    const SlotElement at = slot_element(plane, e);
    dst[n] = at.dst;
    if (e < end) group[n] = from[at.src];
  }
#pragma unroll
  for (int n = 0; n < kSlotAtOnce; ++n) {
    if (begin + threadIdx.x + n * kSlotThreads < end) to[dst[n]] = group[n];
  }
}

__device__ bool copy_slot(const SlotPlane& plane, int64_t to, int64_t from) {
  char* dst = plane.dst + to * plane.dst_pitch;
  const char* src = plane.src + from * plane.src_pitch;
  bool fits = true;
  for (int64_t begin = blockIdx.z * kSlotPiece; begin < plane.count;
       begin += gridDim.z * kSlotPiece) {
    const int64_t end = min(begin + kSlotPiece, plane.count);
    if (plane.bytes == kWide) {
      copy_groups(plane, reinterpret_cast<uint4*>(dst), reinterpret_cast<const uint4*>(src), begin,
                  end);
      continue;
    }
    for (int64_t e = begin + threadIdx.x; e < end; e += kSlotThreads) {
      fits &= copy_element(plane, dst, src, slot_element(plane, e));
    }
  }
  return fits;
}

__global__ void __launch_bounds__(kSlotThreads)
    state_copy_kernel(const __grid_constant__ SlotPlanes p) {
  const SlotPlane& plane = p.plane[blockIdx.y];
  for (int64_t i = blockIdx.x; i < p.ids; i += gridDim.x) {
    const int64_t from = p.src_ids.at(i);
    const int64_t to = p.dst_ids.at(i);
    if ((from >= plane.src_slots || to >= plane.dst_slots) && threadIdx.x == 0) {
      raise_flag(p.status, DeviceFlag::kSlotOutOfRange, i);
    }
    if (from < 0 || from >= plane.src_slots || to < 0 || to >= plane.dst_slots) continue;
    if (!copy_slot(plane, to, from)) raise_overflow(p.status, i, to, plane.index);
  }
}

}  // namespace

Status state_copy_cuda(const StateCopyParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  SlotPlanes batch{};
  batch.dst_ids = index_view(params.dst_slots);
  batch.src_ids = index_view(params.src_slots);
  batch.ids = params.dst_slots.shape[0];
  batch.status = context.status;
  return run_slot_planes("state_copy", state_copy_kernel, params.src.size(), batch, context,
                         [&](size_t i) { return slot_plane(params.dst[i], params.src[i], i); });
}

}  // namespace linestate
