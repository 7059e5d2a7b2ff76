// Buffered decode on a GPU, c records pending and this token's as record c:
//   o = scale (lambda^(c+1) S0^T q + sum_j lambda^(c-j) (k_j . q) v_j)
// A block works on one (row, head); the checkpoint is only read unless the token flushes.
#include "base/int_math.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/common/replay_step_device.cuh"
#include "ops/lightning/lightning_nodes.cuh"
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

constexpr int kAhead = 8;  // records that are fetched before they are needed

/// What a lane has on the way before the token is there.
struct Ahead {
  uint4 keys[2][2];      // of the warp's first two records, up to eight channels each
  uint4 values[kAhead];  // of the first records, four columns
};

/// Channels of lane: 4 * lane + 128 * i and the three behind.
__device__ void read_key(const Replay& p, const Step& step, int j, uint4 (&bits)[2]) {
  const bool narrow = p.keys.dtype != DType::kF32;
  const int64_t at = p.keys.offset(step.row.slot, step.h, j);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int c = 4 * lane_id() + 128 * i;
    const bool live = c < p.lightning.D && j < step.pending;
    bits[i] = read_quad_bits(p.keys.data, narrow, at + c, live && p.keys.packed);
    if (live && !p.keys.packed) {
      bits[i] = gather_lightning_bits(p.keys.data, narrow, at + c * p.keys.step(), p.keys.step());
    }
  }
}

/// Values of record j for the lane's columns.
__device__ uint4 read_value(const Replay& p, const Step& step, int j, int64_t first) {
  const bool narrow = p.values.dtype != DType::kF32;
  const int64_t at = p.values.offset(step.row.slot, step.h, j, first + lightning_column());
  const bool live = j < step.pending && first < p.lightning.D;
  if (live && !p.values.packed) {
    return gather_lightning_bits(p.values.data, narrow, at, p.values.step());
  }
  return read_quad_bits(p.values.data, narrow, at, live);
}

__device__ void read_ahead(const Replay& p, const Step& step, int64_t first, Ahead& ahead) {
  const int warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
  for (int a = 0; a < 2; ++a) read_key(p, step, warp + a * kWarps, ahead.keys[a]);
#pragma unroll
  for (int j = 0; j < kAhead; ++j) ahead.values[j] = read_value(p, step, j, first);
}

/// The token and the powers of lambda, a thread each.
__device__ void share_token(const Replay& p, const Step& step, Shared& shared) {
  const LightningDevice& lightning = p.lightning;
  const auto c = static_cast<int>(threadIdx.x);
  static_assert(32 * kWarps >= 256, "a channel a thread");
  const bool live = c < lightning.D;
  const bool narrow = lightning.q.dtype != DType::kF32;
  const uint32_t q =
      read_element_bits(lightning.q.data, narrow, lightning.q.offset(step.n, step.h, c), live);
  const uint32_t k =
      read_element_bits(lightning.k.data, narrow, lightning.k.offset(step.n, step.h, c), live);
  const uint32_t v =
      read_element_bits(lightning.v.data, narrow, lightning.v.offset(step.n, step.h, c), live);
  if (c <= step.pending) {
    shared.decay[c] = static_cast<float>(lightning_decay_f64(step.slope, step.pending - c));
  } else if (c == step.pending + 1) {
    shared.of_state = static_cast<float>(lightning_decay_f64(step.slope, step.pending + 1));
  }
  shared.token.q[c] = widen_element(q, lightning.q.dtype) * lightning.scale;
  shared.token.k[c] = widen_element(k, lightning.q.dtype);
  shared.token.v[c] = widen_element(v, lightning.q.dtype);
}

/// k . q of one record, by a warp.
__device__ void weigh_record(const Replay& p, int j, const uint4 (&bits)[2], Shared& shared) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float k[4];
    widen_quad(bits[i], p.keys.dtype, k);
    const float4 q = *reinterpret_cast<const float4*>(shared.token.q + 4 * lane_id() + 128 * i);
    sum = fmaf(k[3], q.w, fmaf(k[2], q.z, fmaf(k[1], q.y, fmaf(k[0], q.x, sum))));
  }
  sum = sum_lanes(sum);
  if (lane_id() == 0) shared.weight[j] = shared.decay[j] * sum;
}

/// What every record says to q; record c is this token's.
__device__ void weigh_records(const Replay& p, const Step& step, const Ahead& ahead,
                              Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
  for (int a = 0; a < 2; ++a) {
    if (warp + a * kWarps < step.pending) {
      weigh_record(p, warp + a * kWarps, ahead.keys[a], shared);
    }
  }
  for (int j = warp + 2 * kWarps; j < step.pending; j += kWarps) {
    uint4 bits[2];
    read_key(p, step, j, bits);
    weigh_record(p, j, bits, shared);
  }
  if (warp != kWarps - 1) return;
  float sum = 0.0f;
  for (int c = lane_id(); c < p.lightning.D; c += 32) {
    sum = fmaf(shared.token.k[c], shared.token.q[c], sum);
  }
  sum = sum_lanes(sum);
  if (lane_id() == 0) shared.weight[step.pending] = sum;
}

/// Values of record j for the lane's columns.
__device__ void load_record_value(const Replay& p, const Step& step, int j, int64_t first,
                                  const Shared& shared, float (&v)[4]) {
  if (j == step.pending) return lightning_value(shared.token.v, first, v);
  widen_quad(read_value(p, step, j, first), p.values.dtype, v);
}

/// S <- lambda^(c+1) S + sum_j lambda^(c-j) k_j v_j^T, for the lane's rows from `begin` on.
template <int kRows>
__device__ void flush_columns(const Replay& p, const Step& step, int64_t first,
                              const Shared& shared, int begin, LightningColumns<kRows>& S) {
  const LightningDecay over = lightning_decay(step.slope, step.pending + 1);
  LightningColumns<kRows> sum;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sum.s[i][e] = over.lo * S.s[i][e];
  }
#pragma unroll 1
  for (int j = 0; j <= step.pending; ++j) {
    float v[4];
    load_record_value(p, step, j, first, shared, v);
    const int64_t at = p.keys.offset(step.row.slot, step.h, j);
    const bool pending = j < step.pending;
    uint32_t k[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = lightning_row(begin + i);
      k[i] = read_element_bits(p.keys.data, p.keys.dtype != DType::kF32, at + r * p.keys.step(),
                               pending && r < p.lightning.D);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float of_record = widen_element(k[i], p.keys.dtype);
      const float k_i = pending ? of_record : shared.token.k[lightning_row(begin + i)];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sum.s[i][e] = fmaf(k_i * shared.decay[j], v[e], sum.s[i][e]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) S.s[i][e] = fmaf(over.hi, S.s[i][e], sum.s[i][e]);
  }
}

/// The checkpoint of the warp's columns takes the records, half of the rows at a time: read again,
/// because nobody holds all of it next to its sums. False on overflow.
template <int kRows>
__device__ bool flush_checkpoint(const Replay& p, const Step& step, int64_t first,
                                 const Shared& shared) {
  constexpr int kHalf = kRows / 2;
  const LightningDevice& lightning = p.lightning;
  bool fits = true;
#pragma unroll 1
  for (int begin = 0; begin < kRows; begin += kHalf) {
    LightningColumns<kHalf> S;
    load_lightning<kHalf>(lightning, step.row.slot, step.h, first, step.row.fresh, S, begin);
    flush_columns<kHalf>(p, step, first, shared, begin, S);
    fits &= store_lightning<kHalf>(lightning, step.row.slot, step.h, first, S, begin);
  }
  return fits;
}

/// o of the lane's columns: the records behind what the checkpoint says.
__device__ void add_records(const Replay& p, const Step& step, int64_t first, const Ahead& ahead,
                            const Shared& shared, float (&o)[4]) {
  const auto add = [&](int j, const float(&v)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) o[e] = fmaf(shared.weight[j], v[e], o[e]);
  };
  float v[4];
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    if (j >= step.pending) continue;
    widen_quad(ahead.values[j], p.values.dtype, v);
    add(j, v);
  }
  for (int begin = kAhead; begin < step.pending; begin += kAhead) {
    uint4 bits[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) bits[j] = read_value(p, step, begin + j, first);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (begin + j >= step.pending) continue;
      widen_quad(bits[j], p.values.dtype, v);
      add(begin + j, v);
    }
  }
  lightning_value(shared.token.v, first, v);
  add(step.pending, v);
}

template <int kRows>
__device__ bool replay_columns(const Replay& p, const Step& step, int64_t first, const Ahead& ahead,
                               const Shared& shared, LightningColumns<kRows>& S) {
  const LightningDevice& lightning = p.lightning;
  float o[4];
  read_lightning<kRows>(shared.token.q, S, o);
#pragma unroll
  for (int e = 0; e < 4; ++e) o[e] *= shared.of_state;
  add_records(p, step, first, ahead, shared, o);
  store_lightning_out(lightning, step.n, step.h, first, o);
  if (step.flush) return flush_checkpoint<kRows>(p, step, first, shared);
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

/// The warp's columns from `first` on, whose part of the checkpoint is S.
template <int kRows>
__device__ bool run_columns(const Replay& p, const Step& step, int64_t first, const Ahead& ahead,
                            const Shared& shared, LightningColumns<kRows>& S) {
  const LightningDevice& lightning = p.lightning;
  if (step.pending > 0 || !step.flush) {
    return replay_columns<kRows>(p, step, first, ahead, shared, S);
  }
  float o[4];  // the bits of decode
  step_lightning<kRows>(shared.token, first, lightning_decay(step.slope, 1), S, o);
  store_lightning_out(lightning, step.n, step.h, first, o);
  return store_lightning<kRows>(lightning, step.row.slot, step.h, first, S);
}

/// The checkpoint and the records are on the way before the token is made.
template <int kRows>
__device__ void run_step(const Replay& p, const Step& step, Shared& shared) {
  const LightningDevice& lightning = p.lightning;
  int64_t first = threadIdx.x / 32 * kLightningColumns;
  LightningColumns<kRows> S;
  Ahead ahead;
  if (first < lightning.D) {
    load_lightning<kRows>(lightning, step.row.slot, step.h, first, step.row.fresh, S);
  }
  read_ahead(p, step, first, ahead);
  share_token(p, step, shared);
  __syncthreads();
  weigh_records(p, step, ahead, shared);
  __syncthreads();
  bool fits = first >= lightning.D || run_columns<kRows>(p, step, first, ahead, shared, S);
  for (first += kWarps * kLightningColumns; first < lightning.D;
       first += kWarps * kLightningColumns) {
    load_lightning<kRows>(lightning, step.row.slot, step.h, first, step.row.fresh, S);
    read_ahead(p, step, first, ahead);
    fits &= run_columns<kRows>(p, step, first, ahead, shared, S);
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
__global__ void __launch_bounds__(32 * kWarps, kRows > 16 ? 1 : 2)
    lightning_decode_replay_kernel(const __grid_constant__ Replay p, LightningTasks tasks) {
  __shared__ __align__(16) Shared shared;
  uint32_t h;
  const uint32_t n = tasks.heads.divide(blockIdx.x, h);
  const Step step = read_step(p, n, h);
  if (step.row.valid == 0) {
    empty_step<kRows>(p.lightning, step);
  } else {
    run_step<kRows>(p, step, shared);
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
  const int64_t rows = params.lightning.q.shape[0];
  if (rows * p.lightning.H > kMostLightningTasks) {
    return Status(StatusCode::kUnsupported, "rows times heads exceed 2^31");
  }
  const LightningTasks tasks(rows, p.lightning.H, 1);
  const Status status = with_lightning_rows(p.lightning.D, [&]<int kRows>() {
    return launch("lightning_decode_replay", lightning_decode_replay_kernel<kRows>,
                  grid_of(tasks.count), 32 * kWarps, context, p, tasks);
  });
  LINESTATE_RETURN_IF_ERROR(status);
  return raise_if_not_finite_cuda(context, params.lightning.out);
}

}  // namespace linestate
