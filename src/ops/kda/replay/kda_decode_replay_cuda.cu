// Buffered decode on a GPU in the dual form of include/linestate/ops/replay_ring.h. A block owns a
// (row, value head) and its ring: one warp makes the token while the others fetch the pending keys,
// then the rows of the checkpoint are asked, which is only read unless the token flushes. While a
// block works on one head, the checkpoint of its next one is on the way.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "ops/common/replay_step_device.cuh"
#include "ops/kda/kda_panel_token.cuh"
#include "ops/kda/replay/kda_decode_replay_kernels.h"

namespace linestate {
namespace {

constexpr int kKeysAhead = 2;     // pending keys that a warp fetches before it needs them
constexpr int kValuesAhead = 16;  // records whose u a lane fetches before it needs them

struct Replay {
  KdaDevice kda;
  DeviceView<4> keys, values;  // [P, HV, R-1, K], [P, HV, R-1, V]
  DeviceView<3> gamma;
  DeviceReplayRows rows;
  FastDivider heads;  // value heads of a key head
};

struct Step : DeviceReplayStep {
  int64_t n;
  int32_t j;

  /// Nothing pending and the state is written anyway: the bits of plain decode.
  __device__ bool plain() const { return pending == 0 && flush; }
};

template <typename Map>
struct ReplayShared {
  KdaStageOf<Map> stage;
  float alpha[Map::kChannels], k[Map::kChannels], q[Map::kChannels];  // of the token
  float gamma[Map::kChannels];                                        // since the checkpoint
  float gamma_k[Map::kChannels], gamma_q[Map::kChannels];
  float k_dot[kMaxReplayLength], q_dot[kMaxReplayLength];  // of the pending keys, decayed to now
  float kq, beta;
  alignas(16) float key[1][Map::kChannels];  // as many as may be pending
};

template <typename Map>
int shared_bytes(int64_t records) {
  const int64_t more = records > 1 ? records - 1 : 0;
  return static_cast<int>(static_cast<int64_t>(sizeof(ReplayShared<Map>)) +
                          more * Map::kChannels * 4);
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

template <typename Map>
__device__ void read_key(const Replay& p, const Step& step, int r, ReplayShared<Map>& shared,
                         uint4 (&bits)[Map::kQuads]) {
  const int64_t at = p.keys.offset(step.row.slot, step.j, r);
  read_lane_bits<Map>(p.keys, at, p.kda.K, shared.key[r], bits);
}

/// Pending key r: decayed by this token, kept, and asked what it says to k^ and q^. False on
/// overflow.
template <typename Map>
__device__ bool ask_key(const Replay& p, const Step& step, int r, const uint4 (&bits)[Map::kQuads],
                        ReplayShared<Map>& shared) {
  float key[Map::kElems];
  float x[Map::kElems];
  widen_lanes<Map>(bits, p.keys.dtype, key);
  get_lanes<Map>(shared.alpha, x);
#pragma unroll
  for (int c = 0; c < Map::kElems; ++c) key[c] *= x[c];
  put_lanes<Map>(key, shared.key[r]);
  get_lanes<Map>(shared.k, x);
  const float k_dot = kda_lane_dot<Map>(key, x);
  get_lanes<Map>(shared.q, x);
  const float q_dot = kda_lane_dot<Map>(key, x);
  if (lane_id() == 0) {
    shared.k_dot[r] = k_dot;
    shared.q_dot[r] = q_dot;
  }
  if (step.flush) return true;
  return store_lanes<Map>(p.keys, p.keys.offset(step.row.slot, step.j, r), p.kda.K, key);
}

/// The token, by one warp.
template <typename Map>
__device__ void share_token(const Replay& p, const Step& step, ReplayShared<Map>& shared) {
  uint32_t rest;
  const KdaTask task{step.n, step.j, 0, 0};
  const uint32_t h = p.heads.divide(static_cast<uint32_t>(step.j), rest);
  KdaPanelBits<Map> bits;
  read_token_bits<Map>(p.kda, task, step.n, h, shared.k, bits);
  float gamma[Map::kElems];
#pragma unroll
  for (int c = 0; c < Map::kElems; ++c) gamma[c] = 1.0f;
  const int64_t at = p.gamma.offset(step.row.slot, step.j);
  if (step.pending > 0) load_kda_lanes<Map>(p.gamma, at, p.kda.K, gamma);
  KdaLaneToken<Map> token;
  finish_token_bits<Map>(p.kda, bits, token);
  put_lanes<Map>(token.alpha, shared.alpha);
  put_lanes<Map>(token.k, shared.k);
  put_lanes<Map>(token.q, shared.q);
#pragma unroll
  for (int c = 0; c < Map::kElems; ++c) gamma[c] *= token.alpha[c];
  put_lanes<Map>(gamma, shared.gamma);
#pragma unroll
  for (int c = 0; c < Map::kElems; ++c) {
    token.q[c] *= gamma[c];
    gamma[c] *= token.k[c];
  }
  put_lanes<Map>(gamma, shared.gamma_k);
  put_lanes<Map>(token.q, shared.gamma_q);
  if (lane_id() == 0) {
    shared.kq = token.kq;
    shared.beta = token.beta;
  }
}

/// Record of this token: its key and gamma; by one warp. False on overflow.
template <typename Map>
__device__ bool append_key(const Replay& p, const Step& step, const ReplayShared<Map>& shared) {
  float x[Map::kElems];
  get_lanes<Map>(shared.gamma, x);
  store_lanes<Map>(p.gamma, p.gamma.offset(step.row.slot, step.j), p.kda.K, x);
  get_lanes<Map>(shared.k, x);
  return store_lanes<Map>(p.keys, p.keys.offset(step.row.slot, step.j, step.pending), p.kda.K, x);
}

/// u of record r for row `row` of S, as it lies in memory.
__device__ uint32_t read_value(const Replay& p, const Step& step, int r, int row) {
  return read_element_bits(p.values.data, p.values.dtype != DType::kF32,
                           p.values.offset(step.row.slot, step.j, r, row),
                           r < step.pending && row < p.kda.V);
}

/// u of the first records.
__device__ void read_values(const Replay& p, const Step& step, int row,
                            uint32_t (&values)[kValuesAhead]) {
  const bool narrow = p.values.dtype != DType::kF32;
  const int pending = row < p.kda.V ? step.pending : 0;
  const int64_t pitch = p.values.stride[2] * (narrow ? 2 : 4);
  const char* from = static_cast<const char*>(p.values.data) +
                     p.values.offset(step.row.slot, step.j, 0, row) * (narrow ? 2 : 4);
#pragma unroll
  for (int r = 0; r < kValuesAhead; ++r, from += pitch) {
    values[r] = read_element_bits(from, narrow, 0, r < pending);
  }
}

/// S0 <- S0 diag(Gamma) + sum_r u_r kappa_r^T + u k^T; `u` as the lane that speaks for a row has
/// it.
template <typename Map>
__device__ void flush_rows(const Replay& p, const Step& step, int first, float u,
                           const ReplayShared<Map>& shared, KdaPanelRows<KdaPanelOf<Map>>& rows) {
  using Panel = KdaPanelOf<Map>;
  const int row = first + Panel::group_row();
#pragma unroll
  for (int i = 0; i < Panel::kQuads; ++i) {
    const float4 g = *reinterpret_cast<const float4*>(shared.gamma + Panel::channel(i));
#pragma unroll
    for (int r = 0; r < kPanelRows; ++r) {
      float* s = rows.s[r] + 4 * i;
      s[0] *= g.x;
      s[1] *= g.y;
      s[2] *= g.z;
      s[3] *= g.w;
    }
  }
  float of_row[kPanelRows];
#pragma unroll 1
  for (int m = 0; m < step.pending; ++m) {
#pragma unroll
    for (int r = 0; r < kPanelRows; ++r) {
      of_row[r] = widen_element(read_value(p, step, m, row + r), p.values.dtype);
    }
    add_to_kda_panel<Panel>(of_row, shared.key[m], rows);
  }
#pragma unroll
  for (int r = 0; r < kPanelRows; ++r) {
    const int source = lane_id() / Panel::kLanes * Panel::kLanes + r * Panel::kShare;
    of_row[r] = __shfl_sync(kAllLanes, u, source);
  }
  add_to_kda_panel<Panel>(of_row, shared.k, rows);
}

/// u and o of the warp's rows of S from `first` on, whose products with Gamma k^ and Gamma q^ are
/// `sum`; what is fetched ahead of the records is `ahead`. False on overflow.
template <typename Map>
__device__ bool answer_rows(const Replay& p, const Step& step, int first, float v,
                            const uint32_t (&ahead)[kValuesAhead], const ReplayShared<Map>& shared,
                            KdaPanelRows<KdaPanelOf<Map>>& rows) {
  using Panel = KdaPanelOf<Map>;
  const int row = first + Panel::row();
  const float* dots = Panel::upper() ? shared.q_dot : shared.k_dot;
  float sum = kda_panel_products<Panel>(rows, shared.gamma_k, shared.gamma_q);
#pragma unroll
  for (int r = 0; r < kValuesAhead; ++r) {
    if (r < step.pending) sum = fmaf(dots[r], widen_element(ahead[r], p.values.dtype), sum);
  }
  for (int r = kValuesAhead; r < step.pending; ++r) {
    sum = fmaf(dots[r], widen_element(read_value(p, step, r, row), p.values.dtype), sum);
  }
  const float u = Panel::from_lower(shared.beta * (v - sum));
  const bool speaks = Panel::speaks() && row < p.kda.V;
  if (speaks && Panel::upper()) store_at(p.kda.out, fmaf(u, shared.kq, sum), step.n, step.j, row);
  const KdaPanelAt at{step.row.slot, step.j, first, p.kda.V, false};
  if (step.flush) {
    flush_rows<Map>(p, step, first, u, shared, rows);
    return store_kda_panel<Panel>(p.kda.state, p.kda.K, at, rows);
  }
  if (step.row.fresh) store_kda_panel<Panel>(p.kda.state, p.kda.K, at, rows);  // zeros
  if (Panel::upper() || !speaks) return true;
  return store_f32(p.values.data, p.values.dtype,
                   p.values.offset(step.row.slot, step.j, step.pending, row), u);
}

/// What the block fetches while it works on another head.
struct Next {
  int64_t state;
  int32_t j;
};

template <typename Map>
__device__ void fetch_next(const Replay& p, const Next& next, ReplayShared<Map>& shared) {
  const KdaTask task{0, next.j, 0, p.kda.V};
  fetch_task<KdaPanelOf<Map>>(p.kda, task, next.state, shared.stage);
}

/// All rows of S, a warp kWarpRows of them at once, from `first` on; the first ones are on the way.
template <typename Map>
__device__ bool ask_rows(const Replay& p, const Step& step, const Next& next, float v,
                         const uint32_t (&ahead)[kValuesAhead], ReplayShared<Map>& shared) {
  using Panel = KdaPanelOf<Map>;
  constexpr int kBlockRows = kPanelWarps * Panel::kWarpRows;
  int first = static_cast<int>(threadIdx.x / 32) * Panel::kWarpRows;
  KdaPanelRows<Panel> rows;
  take_kda_panel<Panel>(shared.stage, p.kda.state.dtype, rows);
  if (p.kda.V <= kBlockRows) fetch_next<Map>(p, next, shared);
  bool fits = first >= p.kda.V || answer_rows<Map>(p, step, first, v, ahead, shared, rows);
  for (first += kBlockRows; first < p.kda.V; first += kBlockRows) {
    fetch_kda_panel<Panel>(p.kda.state, p.kda.K,
                           {step.row.slot, step.j, first, p.kda.V, step.row.fresh}, shared.stage);
    uint32_t values[kValuesAhead];
    read_values(p, step, first + Panel::row(), values);
    const int row = first + Panel::row();
    const float value = row < p.kda.V ? load_at(p.kda.v, step.n, step.j, row) : 0.0f;
    take_kda_panel<Panel>(shared.stage, p.kda.state.dtype, rows);
    fits &= answer_rows<Map>(p, step, first, value, values, shared, rows);
  }
  if (p.kda.V > kBlockRows) fetch_next<Map>(p, next, shared);
  return fits;
}

/// A token that only appends, or flushes behind pending records.
template <typename Map>
__device__ void buffered_step(const Replay& p, const Step& step, const Next& next,
                              ReplayShared<Map>& shared) {
  using Panel = KdaPanelOf<Map>;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int row = warp * Panel::kWarpRows + Panel::row();
  uint4 keys[kKeysAhead][Map::kQuads];
  uint32_t ahead[kValuesAhead];
  __syncthreads();  // the head before is done
#pragma unroll
  for (int a = 0; a < kKeysAhead; ++a) {
    const int r = warp + a * kPanelWarps;
    if (r < step.pending) read_key<Map>(p, step, r, shared, keys[a]);
  }
  const uint32_t v = read_element_bits(p.kda.v.data, p.kda.v.dtype != DType::kF32,
                                       p.kda.v.offset(step.n, step.j, row), row < p.kda.V);
  read_values(p, step, row, ahead);
  if (warp == kPanelWarps - 1) share_token<Map>(p, step, shared);  // it has the fewest keys
  __syncthreads();
  bool fits = true;
#pragma unroll
  for (int a = 0; a < kKeysAhead; ++a) {
    const int r = warp + a * kPanelWarps;
    if (r < step.pending) fits &= ask_key<Map>(p, step, r, keys[a], shared);
  }
  for (int r = warp + kKeysAhead * kPanelWarps; r < step.pending; r += kPanelWarps) {
    read_key<Map>(p, step, r, shared, keys[0]);
    fits &= ask_key<Map>(p, step, r, keys[0], shared);
  }
  if (!step.flush && warp == kPanelWarps - 1) fits &= append_key<Map>(p, step, shared);
  __syncthreads();
  fits &= ask_rows<Map>(p, step, next, widen_element(v, p.kda.v.dtype), ahead, shared);
  if (!fits) raise_overflow(p.kda.status, step.n, step.row.slot, p.kda.layer);
}

/// Nothing pending and the state is written anyway: the bits of plain decode.
template <typename Map>
__device__ __noinline__ void plain_step(const Replay& p, int64_t n, int64_t slot, int64_t j,
                                        bool fresh) {
  const KdaDevice& kda = p.kda;
  KdaLaneToken<Map> token;
  load_kda_token<Map>(kda, kda_gate_head(kda, j), n, j, token);
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int64_t first = warp * Map::kWarpRows; first < kda.V;
       first += kPanelWarps * Map::kWarpRows) {
    KdaLaneRows<Map> rows;
    load_kda_rows<Map>(kda, slot, j, first, fresh, rows);
    const float v = load_kda_value<Map>(kda, n, j, first);
    const KdaLaneResult result = step_kda_rows<Map>(token, v, rows);
    store_kda_out<Map>(kda, n, j, first, result.o);
    keep_kda_rows<Map>(kda, n, slot, j, first, rows);
  }
}

template <typename Map>
__device__ void empty_step(const KdaDevice& p, const Step& step) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int64_t first = warp * Map::kWarpRows; first < p.V; first += kPanelWarps * Map::kWarpRows) {
    clear_kda_out<Map>(p, step.n, step.j, first);
    if (step.row.live && step.row.fresh) clear_kda_rows<Map>(p, step.row.slot, step.j, first);
  }
}

__device__ Step read_step(const Replay& p, const KdaTasks& tasks, int32_t task, bool reports) {
  const KdaTask at = tasks.at(task);
  DeviceStatus* status = reports && threadIdx.x == 0 ? at.status(p.kda.status) : nullptr;
  return {read_replay_step(p.kda.rows, p.rows, at.n, status), at.n, at.j};
}

__device__ Next next_of(const Replay& p, const KdaTasks& tasks, int32_t task) {
  if (task >= tasks.count) return {kNoState, 0};
  const Step step = read_step(p, tasks, task, false);
  if (step.row.valid == 0 || step.plain()) return {kNoState, step.j};
  return {step.row.fresh ? kFreshState : step.row.slot, step.j};
}

template <typename Map>
__global__ void __launch_bounds__(kPanelThreads, kPanelBlocks)
    kda_decode_replay_kernel(const __grid_constant__ Replay p,
                             const __grid_constant__ KdaTasks tasks) {
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<ReplayShared<Map>*>(memory);
  auto now = static_cast<int32_t>(blockIdx.x);
  fetch_next<Map>(p, next_of(p, tasks, now), shared);
  for (; now < tasks.count; now = tasks.after(now)) {
    const Next next = next_of(p, tasks, tasks.after(now));
    const Step step = read_step(p, tasks, now, true);
    if (step.row.valid > 0 && !step.plain()) {
      buffered_step<Map>(p, step, next, shared);
      continue;
    }
    if (step.row.valid == 0) {
      empty_step<Map>(p.kda, step);
    } else {
      plain_step<Map>(p, step.n, step.row.slot, step.j, step.row.fresh);
    }
    fetch_next<Map>(p, next, shared);
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
  p.heads = FastDivider(p.kda.HV / p.kda.H);
  const Status status = with_kda_map(p.kda.K, [&]<typename Map>() {
    return launch_kda_tasks<Map>("kda_decode_replay", kda_decode_replay_kernel<Map>, p, p.kda,
                                 params.kda.q.shape[0], true, shared_bytes<Map>(p.rows.records),
                                 context);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.kda.out);
}

}  // namespace linestate
