// The checkpoint S0 is read once and never rebuilt. With c records pending and this token's k, v as
// record c, written lambda for exp(-slope):
//   o  = scale * (lambda^(c+1) S0^T q + sum_j lambda^(c-j) (k_j . q) v_j)          j = 0 .. c
//   flush:  S0 <- lambda^(c+1) S0 + sum_j lambda^(c-j) k_j v_j^T
// With nothing pending a flush is plain decode and goes through the same code.
#include <algorithm>

#include "base/device_status.h"
#include "base/row_access.h"
#include "cpu/avx2.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "cpu/small_matmul.h"
#include "ops/lightning/lightning_access.h"
#include "ops/lightning/lightning_decay.h"
#include "ops/lightning/lightning_ring.h"
#include "ops/lightning/lightning_step_cpu.h"
#include "ops/lightning/replay/lightning_decode_replay_kernels.h"

namespace linestate {
namespace {

constexpr int64_t kLanes = 16;  // D is a multiple of it

struct Buffers {
  float* q;        // [K]
  float* q_decay;  // [K], times scale * lambda^(c+1)
  float* k;        // [R, K], record c is this token's
  float* k_decay;  // [K, R], k_j * lambda^(c-j), for the flush
  float* v;        // [R, V]
  float* o;        // [V]
  float* S;        // [K, V], used when the pool is not dense f32
};

Buffers cut(Scratch& scratch, const LightningReplayParams& params) {
  const int64_t dim = params.lightning.q.shape[2];
  const int64_t length = params.ring.keys.shape[2] + 1;
  Buffers x;
  x.q = scratch.take<float>(dim);
  x.q_decay = scratch.take<float>(dim);
  x.k = scratch.take<float>(length * dim);
  x.k_decay = scratch.take<float>(dim * length);
  x.v = scratch.take<float>(length * dim);
  x.o = scratch.take<float>(dim);
  x.S = scratch.take<float>(dim * dim);
  return x;
}

int64_t scratch_bytes(const LightningReplayParams& params) {
  Scratch counter;
  cut(counter, params);
  return std::max(counter.bytes(), lightning_step_scratch_bytes());
}

// Sixteen running sums, so that the loop is vector code with an order of its own.
LINESTATE_INLINE float dot(const float* __restrict a, const float* __restrict b, int64_t dim) {
  float sum[kLanes] = {};
  for (int64_t d = 0; d < dim; d += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) sum[l] += a[d + l] * b[d + l];
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width; ++l) sum[l] += sum[l + width];
  }
  return sum[0];
}

// o = S0^T q_decay + sum_j weight_j (k_j . q) v_j; S0 may be null, which is zero.
LINESTATE_INLINE void output_body(const Buffers& x, const float* S0, const float* weight,
                                  int64_t records, int64_t dim) {
  float* __restrict o = x.o;
  for (int64_t d = 0; d < dim; ++d) o[d] = 0.0f;
  for (int64_t i = 0; S0 != nullptr && i < dim; i += 4) {
    const float* __restrict S = S0 + i * dim;
    const float q0 = x.q_decay[i], q1 = x.q_decay[i + 1];
    const float q2 = x.q_decay[i + 2], q3 = x.q_decay[i + 3];
    for (int64_t d = 0; d < dim; ++d) {
      o[d] += (q0 * S[d] + q1 * S[dim + d]) + (q2 * S[2 * dim + d] + q3 * S[3 * dim + d]);
    }
  }
  for (int64_t j = 0; j < records; ++j) {
    const float a = weight[j] * dot(x.k + j * dim, x.q, dim);
    const float* __restrict v = x.v + j * dim;
    for (int64_t d = 0; d < dim; ++d) o[d] += a * v[d];
  }
}

LINESTATE_AVX2 void output_avx2(const Buffers& x, const float* S0, const float* weight,
                                int64_t records, int64_t dim) {
  output_body(x, S0, weight, records, dim);
}

void output(const Buffers& x, const float* S0, const float* weight, int64_t records, int64_t dim) {
  if (cpu_has_avx2()) return output_avx2(x, S0, weight, records, dim);
  output_body(x, S0, weight, records, dim);
}

struct Step {
  const LightningReplayParams& replay;
  const ExecContext& context;
  RowInfo row;
  int64_t n;
  int64_t head;
  int64_t pending;
  float slope;
};

void load_records(const Step& step, const Buffers& x) {
  const LightningParams& params = step.replay.lightning;
  const int64_t dim = params.q.shape[2];
  for (int64_t j = 0; j < step.pending; ++j) {
    load_record(step.replay.ring.keys, step.row.slot, step.head, j, x.k + j * dim);
    load_record(step.replay.ring.values, step.row.slot, step.head, j, x.v + j * dim);
  }
  load_token(params.q, step.n, step.head, x.q);
  load_token(params.k, step.n, step.head, x.k + step.pending * dim);
  load_token(params.v, step.n, step.head, x.v + step.pending * dim);
}

// Returns false when a finite value became infinite in the pool's dtype.
bool flush_records(const Step& step, const Buffers& x, float* in_place) {
  const TensorView& state = step.replay.lightning.state;
  const int64_t dim = state.shape[2];
  const int64_t records = step.pending + 1;
  for (int64_t j = 0; j < records; ++j) {
    const auto decay = static_cast<float>(decay_f64(step.slope, step.pending - j));
    for (int64_t d = 0; d < dim; ++d) x.k_decay[d * records + j] = x.k[j * dim + d] * decay;
  }
  float* S = in_place != nullptr ? in_place : x.S;
  const SplitDecay decay = split_decay(step.slope, records);
  small_matmul({x.k_decay, x.v, S, records, dim, dim, dim, dim, records, decay.hi, decay.lo});
  return in_place != nullptr || store_state(state, step.row.slot, step.head, S);
}

bool append_record(const Step& step, const Buffers& x) {
  const ReplayRing& ring = step.replay.ring;
  const int64_t dim = ring.keys.shape[3];
  if (step.row.fresh) zero_state(step.replay.lightning.state, step.row.slot, step.head);
  const bool keys =
      store_record(ring.keys, step.row.slot, step.head, step.pending, x.k + step.pending * dim);
  const bool values =
      store_record(ring.values, step.row.slot, step.head, step.pending, x.v + step.pending * dim);
  return keys && values;
}

// A token that only appends, or flushes behind pending records.
void buffered_step(const Step& step, bool flush, Scratch scratch) {
  const LightningParams& params = step.replay.lightning;
  const int64_t dim = params.q.shape[2];
  const Buffers x = cut(scratch, step.replay);
  load_records(step, x);
  const auto scale = static_cast<double>(params.scale);
  const auto of_state = static_cast<float>(scale * decay_f64(step.slope, step.pending + 1));
  for (int64_t d = 0; d < dim; ++d) x.q_decay[d] = x.q[d] * of_state;
  float weight[kMaxReplayLength];
  for (int64_t j = 0; j <= step.pending; ++j) {
    weight[j] = static_cast<float>(scale * decay_f64(step.slope, step.pending - j));
  }
  float* in_place = direct_state(params.state, step.row.slot, step.head);
  const float* S0 = step.row.fresh ? nullptr : in_place;
  if (!step.row.fresh && in_place == nullptr) {
    load_state(params.state, step.row.slot, step.head, false, x.S);
    S0 = x.S;
  }
  output(x, S0, weight, step.pending + 1, dim);
  store_token(params.out, step.n, step.head, x.o);
  const bool fits = flush ? flush_records(step, x, in_place) : append_record(step, x);
  if (fits) return;
  raise_overflow(step.context.status, static_cast<int32_t>(step.n), step.row.slot, params.layer);
}

}  // namespace

int64_t lightning_decode_replay_cpu_workspace_bytes(const LightningReplayParams& params,
                                                    const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status lightning_decode_replay_cpu(const LightningReplayParams& replay,
                                   const ExecContext& context) {
  const LightningParams& params = replay.lightning;
  const int64_t heads = params.q.shape[1];
  const int64_t bytes = scratch_bytes(replay);
  parallel_for(context, params.rows.slot.shape[0] * heads, [&](int64_t task, int thread) {
    const int64_t n = task / heads;
    const int64_t h = task % heads;
    const RowInfo row = read_decode_row(params.rows, n, params.state.shape[0]);
    const Scratch scratch = thread_scratch(context, thread, bytes);
    const int64_t pending = row.valid > 0 ? load_index(replay.pending, n) : 0;
    const bool flush = load_flag(replay.flush, n);
    if (row.valid == 0 || (flush && pending == 0)) {
      lightning_step_cpu(params, context, row, n, h, scratch);
      return;
    }
    const float slope = load_f32(params.slopes.data, DType::kF32, offset_of(params.slopes, h));
    buffered_step({replay, context, row, n, h, pending, slope}, flush, scratch);
  });
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
