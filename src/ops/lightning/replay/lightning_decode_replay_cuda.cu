// Buffered decode on a GPU, c records pending and this token's as record c:
//   o = scale (lambda^(c+1) S0^T q + sum_j lambda^(c-j) (k_j . q) v_j)
// A block works on one (row, head); the checkpoint is only read unless the token flushes.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/common/replay_step_device.cuh"
#include "ops/lightning/lightning_lane_step.cuh"
#include "ops/lightning/replay/lightning_decode_replay_kernels.h"

namespace linestate {
namespace {

constexpr int kWarps = 8;

struct Replay {
  LightningDevice lightning;
  DeviceView<4> keys, values;  // [P, H, R-1, D]
  DeviceReplayRows rows;
};

struct Step : DeviceReplayStep {
  int64_t n, h;
  float slope;
};

struct Shared {
  LightningToken token;            // q times scale
  float weight[kMaxReplayLength];  // lambda^(c-j) (k_j . scale q)
  float decay[kMaxReplayLength];   // lambda^(c-j)
  float of_state;                  // lambda^(c+1)
};

/// k_j . q of the records, a warp each; record c is this token's.
__device__ void weigh_records(const Replay& p, const Step& step, Shared& shared) {
  const int D = p.lightning.D;
  for (int j = static_cast<int>(threadIdx.x / 32); j <= step.pending; j += kWarps) {
    float sum = 0.0f;
    for (int c = lane_id(); c < D; c += 32) {
      const float k =
          j == step.pending ? shared.token.k[c] : load_at(p.keys, step.row.slot, step.h, j, c);
      sum = fmaf(k, shared.token.q[c], sum);
    }
    sum = sum_lanes(sum);
    if (lane_id() != 0) continue;
    shared.decay[j] = static_cast<float>(lightning_decay_f64(step.slope, step.pending - j));
    shared.weight[j] = shared.decay[j] * sum;
  }
  if (threadIdx.x == 0) {
    shared.of_state = static_cast<float>(lightning_decay_f64(step.slope, step.pending + 1));
  }
}

/// Values of record j for the lane's columns.
__device__ void load_record_value(const Replay& p, const Step& step, int j, int64_t first,
                                  const Shared& shared, float (&v)[4]) {
  if (j == step.pending) return lightning_value(shared.token.v, first, v);
  load_quad(p.values, p.values.offset(step.row.slot, step.h, j, first + lightning_column()), v);
}

/// S <- lambda^(c+1) S + sum_j lambda^(c-j) k_j v_j^T
template <int kRows>
__device__ void flush_columns(const Replay& p, const Step& step, int64_t first,
                              const Shared& shared, LightningColumns<kRows>& S) {
  const LightningDecay over = lightning_decay(step.slope, step.pending + 1);
  LightningColumns<kRows> sum;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sum.s[i][e] = over.lo * S.s[i][e];
  }
  for (int j = 0; j <= step.pending; ++j) {
    float v[4];
    load_record_value(p, step, j, first, shared, v);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = lightning_row(i);
      float k = 0.0f;
      if (r < p.lightning.D) {
        k = j == step.pending ? shared.token.k[r] : load_at(p.keys, step.row.slot, step.h, j, r);
      }
      k *= shared.decay[j];
#pragma unroll
      for (int e = 0; e < 4; ++e) sum.s[i][e] = fmaf(k, v[e], sum.s[i][e]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) S.s[i][e] = fmaf(over.hi, S.s[i][e], sum.s[i][e]);
  }
}

template <int kRows>
__device__ bool replay_columns(const Replay& p, const Step& step, int64_t first,
                               const Shared& shared) {
  const LightningDevice& lightning = p.lightning;
  LightningColumns<kRows> S;
  load_lightning<kRows>(lightning, step.row.slot, step.h, first, step.row.fresh, S);
  float o[4];
  read_lightning<kRows>(shared.token.q, S, o);
#pragma unroll
  for (int e = 0; e < 4; ++e) o[e] *= shared.of_state;
  for (int j = 0; j <= step.pending; ++j) {
    float v[4];
    load_record_value(p, step, j, first, shared, v);
#pragma unroll
    for (int e = 0; e < 4; ++e) o[e] = fmaf(shared.weight[j], v[e], o[e]);
  }
  store_lightning_out(lightning, step.n, step.h, first, o);
  if (step.flush) {
    flush_columns<kRows>(p, step, first, shared, S);
    return store_lightning<kRows>(lightning, step.row.slot, step.h, first, S);
  }
  if (step.row.fresh) clear_lightning<kRows>(lightning, step.row.slot, step.h, first);
  return true;
}

/// This token's record behind the pending ones. False on overflow.
__device__ bool append_record(const Replay& p, const Step& step, const Shared& shared) {
  bool fits = true;
  for (int c = static_cast<int>(threadIdx.x); c < p.lightning.D; c += 32 * kWarps) {
    fits &= store_f32(p.keys.data, p.keys.dtype,
                      p.keys.offset(step.row.slot, step.h, step.pending, c), shared.token.k[c]);
    fits &= store_f32(p.values.data, p.values.dtype,
                      p.values.offset(step.row.slot, step.h, step.pending, c), shared.token.v[c]);
  }
  return fits;
}

template <int kRows>
__device__ void run_step(const Replay& p, const Step& step, Shared& shared) {
  const LightningDevice& lightning = p.lightning;
  __syncthreads();
  fetch_lightning_token(lightning, step.n, step.h, static_cast<int>(threadIdx.x), 32 * kWarps,
                        shared.token);
  __syncthreads();
  const bool plain = step.pending == 0 && step.flush;  // the bits of decode
  if (!plain) weigh_records(p, step, shared);
  __syncthreads();
  bool fits = true;
  for (int64_t first = threadIdx.x / 32 * kLightningColumns; first < lightning.D;
       first += kWarps * kLightningColumns) {
    if (!plain) {
      fits &= replay_columns<kRows>(p, step, first, shared);
      continue;
    }
    LightningColumns<kRows> S;
    load_lightning<kRows>(lightning, step.row.slot, step.h, first, step.row.fresh, S);
    float o[4];
    step_lightning<kRows>(shared.token, first, lightning_decay(step.slope, 1), S, o);
    store_lightning_out(lightning, step.n, step.h, first, o);
    fits &= store_lightning<kRows>(lightning, step.row.slot, step.h, first, S);
  }
  if (!step.flush) fits &= append_record(p, step, shared);
  if (!fits) raise_overflow(lightning.status, step.n, step.row.slot, lightning.layer);
}

template <int kRows>
__device__ void empty_step(const LightningDevice& p, const Step& step) {
  for (int64_t first = threadIdx.x / 32 * kLightningColumns; first < p.D;
       first += kWarps * kLightningColumns) {
    clear_lightning_out(p, step.n, step.h, first);
    if (step.row.live && step.row.fresh) clear_lightning<kRows>(p, step.row.slot, step.h, first);
  }
}

__device__ Step read_step(const Replay& p, int64_t n, int64_t h) {
  DeviceStatus* status = h == 0 && threadIdx.x == 0 ? p.lightning.status : nullptr;
  return {read_replay_step(p.lightning.rows, p.rows, n, status), n, h,
          load_at(p.lightning.slopes, h)};
}

template <int kRows>
__global__ void __launch_bounds__(32 * kWarps)
    lightning_decode_replay_kernel(const __grid_constant__ Replay p, int64_t tasks) {
  __shared__ Shared shared;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const Step step = read_step(p, task / p.lightning.H, task % p.lightning.H);
    if (step.row.valid == 0) {
      empty_step<kRows>(p.lightning, step);
    } else {
      run_step<kRows>(p, step, shared);
    }
  }
}

}  // namespace

Status lightning_decode_replay_cuda(const LightningReplayParams& params,
                                    const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  Replay p{};
  p.lightning = lightning_device(params.lightning, context);
  p.keys = device_view<4>(params.ring.keys);
  p.values = device_view<4>(params.ring.values);
  p.rows = device_replay_rows(params);
  const int64_t tasks = params.lightning.q.shape[0] * p.lightning.H;
  const Status status = with_lightning_rows(p.lightning.D, [&]<int kRows>() {
    return launch("lightning_decode_replay", lightning_decode_replay_kernel<kRows>, grid_of(tasks),
                  32 * kWarps, context, p, tasks);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.lightning.out);
}

}  // namespace linestate
