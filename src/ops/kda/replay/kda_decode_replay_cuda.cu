// Buffered decode on a GPU in the dual form of include/linestate/ops/replay_ring.h. A block works
// on one (row, value head): its warps first ask the pending keys, then go through the rows of the
// checkpoint, which is only read unless the token flushes.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/common/replay_step_device.cuh"
#include "ops/kda/kda_lane_step.cuh"
#include "ops/kda/replay/kda_decode_replay_kernels.h"

namespace linestate {
namespace {

constexpr int kWarps = 8;

struct Replay {
  KdaDevice kda;
  DeviceView<4> keys, values;  // [P, HV, R-1, K], [P, HV, R-1, V]
  DeviceView<3> gamma;
  DeviceReplayRows rows;
};

struct Step : DeviceReplayStep {
  int64_t n, j;
};

/// What the pending keys, decayed to now, say to k^ and scale q^.
struct Dots {
  float k[kMaxReplayLength];
  float q[kMaxReplayLength];
};

template <typename Map>
__device__ void scale_lanes(const float (&factor)[Map::kElems], float (&x)[Map::kElems]) {
#pragma unroll
  for (int i = 0; i < Map::kElems; ++i) x[i] *= factor[i];
}

/// False when a finite value became infinite.
template <typename Map, int kRank>
__device__ bool store_lanes(const DeviceView<kRank>& view, int64_t at, int K,
                            const float (&x)[Map::kElems]) {
  bool fits = true;
  if (Map::group() != 0) return fits;
#pragma unroll
  for (int i = 0; i < Map::kQuads; ++i) {
    const int c = Map::channel(i);
    if (c < K) fits &= store_quad(view, at + c * view.step(), x + 4 * i);
  }
  return fits;
}

/// Pending key r decayed by this token.
template <typename Map>
__device__ void load_key(const Replay& p, const Step& step, int r, const KdaLaneToken<Map>& token,
                         float (&key)[Map::kElems]) {
  load_kda_lanes<Map>(p.keys, p.keys.offset(step.row.slot, step.j, r), p.kda.K, key);
  scale_lanes<Map>(token.alpha, key);
}

/// The warp's share of the dots; keys that stay pending go back decayed. False on overflow.
template <typename Map>
__device__ bool ask_keys(const Replay& p, const Step& step, const KdaLaneToken<Map>& token,
                         Dots& dots) {
  bool fits = true;
  for (int r = static_cast<int>(threadIdx.x / 32); r < step.pending; r += kWarps) {
    float key[Map::kElems];
    load_key<Map>(p, step, r, token, key);
    const float k_dot = kda_lane_dot<Map>(key, token.k);
    const float q_dot = kda_lane_dot<Map>(key, token.q);
    if (lane_id() == 0) {
      dots.k[r] = k_dot;
      dots.q[r] = q_dot;
    }
    if (step.flush) continue;
    fits &= store_lanes<Map>(p.keys, p.keys.offset(step.row.slot, step.j, r), p.kda.K, key);
  }
  return fits;
}

template <typename Map>
__device__ float load_pending_u(const Replay& p, const Step& step, int r, int64_t row) {
  return row < p.kda.V ? load_at(p.values, step.row.slot, step.j, r, row) : 0.0f;
}

/// S0 <- S0 diag(Gamma) + sum_r u_r kappa_r^T + u k^T
template <typename Map>
__device__ void flush_rows(const Replay& p, const Step& step, const KdaLaneToken<Map>& token,
                           const float (&gamma)[Map::kElems], float u, int64_t row,
                           KdaLaneRows<Map>& rows) {
  float ones[Map::kElems];
#pragma unroll
  for (int i = 0; i < Map::kElems; ++i) ones[i] = 1.0f;
#pragma unroll
  for (int r = 0; r < kStateRows; ++r) scale_lanes<Map>(gamma, rows.s[r]);
  for (int r = 0; r < step.pending; ++r) {
    float key[Map::kElems];
    load_key<Map>(p, step, r, token, key);
    update_kda_rows<Map>(ones, key, load_pending_u<Map>(p, step, r, row), rows);
  }
  update_kda_rows<Map>(ones, token.k, u, rows);
}

template <typename Map>
__device__ bool replay_rows(const Replay& p, const Step& step, const KdaLaneToken<Map>& token,
                            const float (&gamma)[Map::kElems], const Dots& dots, int64_t first) {
  using Role = KdaLaneRole<Map>;
  const KdaDevice& kda = p.kda;
  const int64_t row = kda_group_row<Map>(first) + Role::row();
  KdaLaneRows<Map> rows;
  load_kda_rows<Map>(kda, step.row.slot, step.j, first, step.row.fresh, rows);
  KdaLaneToken<Map> since = token;  // seen from the checkpoint
#pragma unroll
  for (int i = 0; i < Map::kElems; ++i) since.alpha[i] = gamma[i];
  float sum = predict_kda_rows<Map>(since, rows);
  for (int r = 0; r < step.pending; ++r) {
    const float u_r = load_pending_u<Map>(p, step, r, row);
    sum = fmaf(Role::upper() ? dots.q[r] : dots.k[r], u_r, sum);
  }
  const float u = token.beta * (load_kda_value<Map>(kda, step.n, step.j, first) - sum);
  const float u_below = __shfl_xor_sync(kAllLanes, u, Map::kLanes / 2);
  store_kda_out<Map>(kda, step.n, step.j, first, fmaf(u_below, token.kq, sum));
  if (step.flush) {
    flush_rows<Map>(p, step, token, gamma, u, row, rows);
    return store_kda_rows<Map>(kda, step.row.slot, step.j, first, rows);
  }
  if (step.row.fresh) clear_kda_rows<Map>(kda, step.row.slot, step.j, first);
  if (Role::upper() || !Role::speaks() || row >= kda.V) return true;
  return store_f32(p.values.data, p.values.dtype,
                   p.values.offset(step.row.slot, step.j, step.pending, row), u);
}

/// A token that only appends, or flushes behind pending records.
template <typename Map>
__device__ void buffered_step(const Replay& p, const Step& step, const KdaLaneToken<Map>& token,
                              Dots& dots) {
  float gamma[Map::kElems];
#pragma unroll
  for (int i = 0; i < Map::kElems; ++i) gamma[i] = token.alpha[i];
  if (step.pending > 0) {
    load_kda_lanes<Map>(p.gamma, p.gamma.offset(step.row.slot, step.j), p.kda.K, gamma);
    scale_lanes<Map>(token.alpha, gamma);
  }
  __syncthreads();  // the previous row's dots have been read
  bool fits = ask_keys<Map>(p, step, token, dots);
  __syncthreads();  // and every warp has read gamma
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int64_t first = warp * Map::kWarpRows; first < p.kda.V; first += kWarps * Map::kWarpRows) {
    fits &= replay_rows<Map>(p, step, token, gamma, dots, first);
  }
  if (!step.flush && warp == 0) {
    fits &= store_lanes<Map>(p.keys, p.keys.offset(step.row.slot, step.j, step.pending), p.kda.K,
                             token.k);
    store_lanes<Map>(p.gamma, p.gamma.offset(step.row.slot, step.j), p.kda.K, gamma);
  }
  if (!fits) raise_overflow(p.kda.status, step.n, step.row.slot, p.kda.layer);
}

/// Nothing pending and the state is written anyway: the bits of plain decode.
template <typename Map>
__device__ void plain_step(const Replay& p, const Step& step, const KdaLaneToken<Map>& token) {
  const KdaDevice& kda = p.kda;
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int64_t first = warp * Map::kWarpRows; first < kda.V; first += kWarps * Map::kWarpRows) {
    KdaLaneRows<Map> rows;
    load_kda_rows<Map>(kda, step.row.slot, step.j, first, step.row.fresh, rows);
    const float v = load_kda_value<Map>(kda, step.n, step.j, first);
    const KdaLaneResult result = step_kda_rows<Map>(token, v, rows);
    store_kda_out<Map>(kda, step.n, step.j, first, result.o);
    keep_kda_rows<Map>(kda, step.n, step.row.slot, step.j, first, rows);
  }
}

template <typename Map>
__device__ void empty_step(const KdaDevice& p, const Step& step) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int64_t first = warp * Map::kWarpRows; first < p.V; first += kWarps * Map::kWarpRows) {
    clear_kda_out<Map>(p, step.n, step.j, first);
    if (step.row.live && step.row.fresh) clear_kda_rows<Map>(p, step.row.slot, step.j, first);
  }
}

__device__ Step read_step(const Replay& p, int64_t n, int64_t j) {
  DeviceStatus* status = j == 0 && threadIdx.x == 0 ? p.kda.status : nullptr;
  return {read_replay_step(p.kda.rows, p.rows, n, status), n, j};
}

template <typename Map>
__global__ void __launch_bounds__(32 * kWarps)
    kda_decode_replay_kernel(const __grid_constant__ Replay p, int64_t tasks) {
  __shared__ Dots dots;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const Step step = read_step(p, task / p.kda.HV, task % p.kda.HV);
    if (step.row.valid == 0) {
      empty_step<Map>(p.kda, step);
      continue;
    }
    KdaLaneToken<Map> token;
    load_kda_token<Map>(p.kda, kda_gate_head(p.kda, step.j), step.n, step.j, token);
    if (step.pending == 0 && step.flush) {
      plain_step<Map>(p, step, token);
    } else {
      buffered_step<Map>(p, step, token, dots);
    }
  }
}

}  // namespace

Status kda_decode_replay_cuda(const KdaReplayParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  Replay p{};
  p.kda = kda_device(params.kda, context);
  p.keys = device_view<4>(params.ring.keys);
  p.values = device_view<4>(params.ring.values);
  p.gamma = device_view<3>(params.ring.gamma);
  p.rows = device_replay_rows(params);
  const int64_t tasks = params.kda.q.shape[0] * p.kda.HV;
  const Status status = with_kda_map(p.kda.K, [&]<typename Map>() {
    return launch("kda_decode_replay", kda_decode_replay_kernel<Map>, grid_of(tasks), 32 * kWarps,
                  context, p, tasks);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.kda.out);
}

}  // namespace linestate
