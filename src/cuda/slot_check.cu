#include "cuda/device_flags.cuh"
#include "cuda/device_view.cuh"
#include "cuda/launch.cuh"
#include "cuda/slot_check.h"

namespace linestate {
namespace {

constexpr int kThreads = 256;

struct Ids {
  IndexView slot;
  IndexView target;
  int64_t rows;
  int64_t targets;
  int64_t num_slots;

  /// Row i, or target i - rows; -1 for padding, which shares nothing.
  __device__ int64_t at(int64_t i) const {
    const int64_t id = i < rows ? slot.at(i) : target.at(i - rows);
    return id >= 0 && id < num_slots ? id : -1;
  }
};

// A thread an id, against all ids before it: a tile of them at a time through shared memory.
__global__ void __launch_bounds__(kThreads) slot_check_kernel(Ids ids, DeviceStatus* status) {
  __shared__ int64_t tile[kThreads];
  const int64_t count = ids.rows + ids.targets;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads; first < count;
       first += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t mine = first + threadIdx.x;
    const int64_t id = mine < count ? ids.at(mine) : -1;
    bool shared = false;
    for (int64_t begin = 0; begin <= first; begin += kThreads) {
      __syncthreads();
      tile[threadIdx.x] = begin + threadIdx.x < count ? ids.at(begin + threadIdx.x) : -1;
      __syncthreads();
      const int64_t before = mine - begin < kThreads ? mine - begin : kThreads;
      for (int64_t i = 0; i < before; ++i) shared |= tile[i] == id;
    }
    if (shared && id >= 0) raise_flag(status, DeviceFlag::kDuplicateSlot, mine);
  }
}

}  // namespace

Status raise_if_slots_shared_cuda(const ExecContext& context, const WrittenSlots& slots) {
  if (context.status == nullptr || context.slots_checked || !slots.slot.defined()) return {};
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const Ids ids{index_view(slots.slot), index_view(slots.target), slots.slot.shape[0],
                slots.target.defined() ? slots.target.shape[0] : 0, slots.num_slots};
  const int64_t blocks = (ids.rows + ids.targets + kThreads - 1) / kThreads;
  if (ids.rows + ids.targets < 2) return {};
  return launch("slot_check", slot_check_kernel, grid_of(blocks), kThreads, context, ids,
                context.status);
}

}  // namespace linestate
