// Fold on a GPU: a thread takes one element of the state through all pending records,
//   s <- s hi + (s lo + sum_r factor_r row_r).
// KDA rows run along keys, Lightning rows along values; either way an element takes a product of
// the records' two sides.
#include "base/int_math.h"
#include "cuda/device_flags.cuh"
#include "cuda/device_view.cuh"
#include "cuda/launch.cuh"
#include "ops/replay/fold/replay_fold_kernels.h"

namespace linestate {
namespace {

constexpr int kThreads = 256;

struct Fold {
  DeviceView<4> state;          // [P, heads, rows, dim]
  DeviceView<4> along, across;  // [P, heads, R-1, dim] and [.., rows]
  DeviceView<3> gamma;          // KDA
  DeviceView<1> slopes;         // Lightning
  IndexView slots;
  int32_t* cursor;
  int64_t cursor_stride, num_slots, ids;
  int32_t heads, rows, dim, records, layer;
  DeviceStatus* status;
};

struct Decay {
  float hi, lo;
};

/// Over all pending tokens; for Lightning the f32 rounding error of lambda^pending is kept.
__device__ Decay decay_of(const Fold& p, int64_t slot, int64_t head, int32_t pending, int64_t c,
                          double slope) {
  if (p.slopes.data == nullptr) return {load_at(p.gamma, slot, head, c), 0.0f};
  const double decay = exp(-slope * pending);
  const auto hi = static_cast<float>(decay);
  return {hi, static_cast<float>(decay - static_cast<double>(hi))};
}

__device__ bool fold_element(const Fold& p, int64_t slot, int64_t head, int32_t pending,
                             const float* decay, double slope, int64_t i, int64_t c) {
  const int64_t at = p.state.offset(slot, head, i, c);
  const Decay over = decay_of(p, slot, head, pending, c, slope);
  const float s = load_f32(p.state.data, p.state.dtype, at);
  float sum = s * over.lo;
  for (int32_t r = 0; r < pending; ++r) {
    const float factor = decay[r] * load_at(p.across, slot, head, r, i);
    sum = fmaf(factor, load_at(p.along, slot, head, r, c), sum);
  }
  return store_f32(p.state.data, p.state.dtype, at, fmaf(s, over.hi, sum));
}

__global__ void __launch_bounds__(kThreads)
    fold_kernel(const __grid_constant__ Fold p, int64_t blocks, int64_t tasks) {
  __shared__ float decay[kMaxReplayLength];
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t element = task % blocks * kThreads + threadIdx.x;
    const int64_t head = task / blocks % p.heads;
    const int64_t id = task / blocks / p.heads;
    const int64_t slot = p.slots.at(id);
    if (slot < 0 || slot >= p.num_slots) continue;
    const int32_t pending = p.cursor[slot * p.cursor_stride];
    if (pending <= 0 || pending > p.records) {
      if (pending != 0) raise_flag(p.status, DeviceFlag::kBadOffsets, id);
      continue;
    }
    const double slope =
        p.slopes.data == nullptr ? 0.0 : static_cast<double>(load_at(p.slopes, head));
    __syncthreads();
    if (threadIdx.x < pending) {
      decay[threadIdx.x] =
          static_cast<float>(exp(-slope * static_cast<double>(pending - 1 - int(threadIdx.x))));
    }
    __syncthreads();
    if (element >= static_cast<int64_t>(p.rows) * p.dim) continue;
    if (!fold_element(p, slot, head, pending, decay, slope, element / p.dim, element % p.dim)) {
      raise_overflow(p.status, id, slot, p.layer);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    empty_rings_kernel(IndexView slots, int64_t ids, int32_t* cursor, int64_t stride,
                       int64_t num_slots) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < ids;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t slot = slots.at(i);
    if (slot >= 0 && slot < num_slots) cursor[slot * stride] = 0;
  }
}

Fold fold_of(const ReplayFoldParams& params, const ReplayFoldLayer& layer,
             const ExecContext& context) {
  const bool lightning = layer.slopes.defined();
  Fold p{};
  p.state = device_view<4>(layer.state);
  p.along = device_view<4>(lightning ? layer.ring.values : layer.ring.keys);
  p.across = device_view<4>(lightning ? layer.ring.keys : layer.ring.values);
  if (lightning) {
    p.slopes = device_view<1>(layer.slopes);
  } else {
    p.gamma = device_view<3>(layer.ring.gamma);
  }
  p.slots = index_view(params.slots);
  p.cursor = static_cast<int32_t*>(params.cursor.data);
  p.cursor_stride = params.cursor.stride[0];
  p.num_slots = params.cursor.shape[0];
  p.ids = params.slots.shape[0];
  p.heads = static_cast<int32_t>(layer.state.shape[1]);
  p.rows = static_cast<int32_t>(layer.state.shape[2]);
  p.dim = static_cast<int32_t>(layer.state.shape[3]);
  p.records = static_cast<int32_t>(layer.ring.keys.shape[2]);
  p.layer = layer.layer;
  p.status = context.status;
  return p;
}

}  // namespace

Status replay_fold_cuda(const ReplayFoldParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  for (const ReplayFoldLayer& layer : params.layers) {
    const Fold p = fold_of(params, layer, context);
    const int64_t blocks = ceil_div(static_cast<int64_t>(p.rows) * p.dim, kThreads);
    const int64_t tasks = p.ids * p.heads * blocks;
    LINESTATE_RETURN_IF_ERROR(
        launch("replay_fold", fold_kernel, grid_of(tasks), kThreads, context, p, blocks, tasks));
  }
  const int64_t ids = params.slots.shape[0];
  return launch("replay_fold", empty_rings_kernel, grid_of(ceil_div(ids, kThreads)), kThreads,
                context, index_view(params.slots), ids, static_cast<int32_t*>(params.cursor.data),
                params.cursor.stride[0], params.cursor.shape[0]);
}

}  // namespace linestate
