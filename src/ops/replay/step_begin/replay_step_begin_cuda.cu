// The protocol of include/linestate/ops/replay_ring.h, a thread a row.
#include "base/int_math.h"
#include "cuda/device_rows.cuh"
#include "cuda/launch.cuh"
#include "ops/replay/step_begin/replay_step_begin_kernels.h"

namespace linestate {
namespace {

constexpr int kThreads = 128;

struct Step {
  DeviceRows rows;
  const uint8_t* force_flush;
  int32_t* cursor;
  int32_t* pending;
  uint8_t* flush;
  int64_t force_stride, cursor_stride, pending_stride, flush_stride;
  int32_t ring_length;
  DeviceStatus* status;
};

__device__ void begin_row(const Step& p, int64_t n) {
  const DeviceRow row = read_decode_row(p.rows, n, p.status);
  int32_t before = 0;
  bool flushes = false;
  if (row.live && (row.valid > 0 || row.fresh)) {
    int32_t& cursor = p.cursor[row.slot * p.cursor_stride];
    before = row.fresh ? 0 : cursor;
    if (before < 0 || before >= p.ring_length) {
      // A cursor that no step wrote: nothing behind it can be trusted.
      raise_flag(p.status, DeviceFlag::kBadOffsets, n);
      before = 0;
    }
    const bool asked = p.force_flush != nullptr && p.force_flush[n * p.force_stride] != 0;
    flushes = row.valid > 0 && (before + 1 == p.ring_length || asked);
    cursor = row.valid == 0 || flushes ? 0 : before + 1;
  }
  p.pending[n * p.pending_stride] = before;
  p.flush[n * p.flush_stride] = flushes ? 1 : 0;
}

__global__ void __launch_bounds__(kThreads)
    step_begin_kernel(const __grid_constant__ Step p, int64_t blocks) {
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t n = block * kThreads + threadIdx.x;
    if (n < p.rows.count) begin_row(p, n);
  }
}

}  // namespace

Status replay_step_begin_cuda(const ReplayStepParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  Step p{};
  p.rows = device_rows(params.rows, params.cursor.shape[0], params.rows.slot.shape[0]);
  p.force_flush = static_cast<const uint8_t*>(params.force_flush.data);
  p.cursor = static_cast<int32_t*>(params.cursor.data);
  p.pending = static_cast<int32_t*>(params.pending.data);
  p.flush = static_cast<uint8_t*>(params.flush.data);
  p.force_stride = params.force_flush.stride[0];
  p.cursor_stride = params.cursor.stride[0];
  p.pending_stride = params.pending.stride[0];
  p.flush_stride = params.flush.stride[0];
  p.ring_length = static_cast<int32_t>(params.ring_length);
  p.status = context.status;
  const int64_t blocks = ceil_div(p.rows.count, kThreads);
  return launch("replay_step_begin", step_begin_kernel, grid_of(blocks), kThreads, context, p,
                blocks);
}

}  // namespace linestate
