#include "ops/state_ops/clear/state_clear_kernels.h"
#include "ops/state_ops/slot_planes.cuh"

namespace linestate {
namespace {

__device__ void clear_element(const SlotPlane& plane, char* slot, int64_t at) {
  if (plane.bytes == kWide) {
    reinterpret_cast<uint4*>(slot)[at] = make_uint4(0, 0, 0, 0);
  } else if (plane.bytes == 4) {
    reinterpret_cast<uint32_t*>(slot)[at] = 0;
  } else {
    reinterpret_cast<uint16_t*>(slot)[at] = 0;
  }
}

__global__ void __launch_bounds__(kSlotThreads)
    state_clear_kernel(const __grid_constant__ SlotPlanes p) {
  const SlotPlane& plane = p.plane[blockIdx.y];
  for (int64_t i = blockIdx.x; i < p.ids; i += gridDim.x) {
    const int64_t slot = p.dst_ids.at(i);
    if (slot >= plane.dst_slots && threadIdx.x == 0) {
      raise_flag(p.status, DeviceFlag::kSlotOutOfRange, i);
    }
    if (slot < 0 || slot >= plane.dst_slots) continue;
    char* data = plane.dst + slot * plane.dst_pitch;
    for (int64_t begin = blockIdx.z * kSlotPiece; begin < plane.count;
         begin += gridDim.z * kSlotPiece) {
      const int64_t end = min(begin + kSlotPiece, plane.count);
      for (int64_t e = begin + threadIdx.x; e < end; e += kSlotThreads) {
        clear_element(plane, data, slot_element(plane, e).dst);
      }
    }
  }
}

}  // namespace

Status state_clear_cuda(const StateClearParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  SlotPlanes batch{};
  batch.dst_ids = index_view(params.slots);
  batch.ids = params.slots.shape[0];
  batch.status = context.status;
  return run_slot_planes(
      "state_clear", state_clear_kernel, params.planes.size(), batch, context,
      [&](size_t i) { return slot_plane(params.planes[i], params.planes[i], i); });
}

}  // namespace linestate
