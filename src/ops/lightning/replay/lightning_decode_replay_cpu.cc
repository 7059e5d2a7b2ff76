// The checkpoint S0 is read once and never rebuilt. With c records pending and this token's k, v as
// record c, written lambda for exp(-slope):
//   o  = scale * (lambda^(c+1) S0^T q + sum_j lambda^(c-j) (k_j . q) v_j)          j = 0 .. c
//   flush:  S0 <- lambda^(c+1) S0 + sum_j lambda^(c-j) k_j v_j^T
// With nothing pending a flush is plain decode and goes through the same code.
#include <algorithm>

#include "base/device_status.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/lightning/lightning_access.h"
#include "ops/lightning/lightning_decay.h"
#include "ops/lightning/lightning_ring.h"
#include "ops/lightning/lightning_step_cpu.h"
#include "ops/lightning/replay/lightning_decode_replay_kernels.h"

#ifndef LINESTATE_LIGHTNING_REPLAY_ONCE
#define LINESTATE_LIGHTNING_REPLAY_ONCE
namespace linestate {

struct LightningReplayScratch {
  float* q;        // [K]
  float* q_decay;  // [K], times scale * lambda^(c+1)
  float* k;        // [R, K], record c is this token's
  float* v;        // [R, V]
  float* v_decay;  // [R, V], v_j * lambda^(c-j), for the flush
  float* o;        // [V]
  float* S;        // [K, V], used when the pool is not dense f32
};

}  // namespace linestate
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/lightning/replay/lightning_decode_replay_cpu.cc"
#include <hwy/foreach_target.h>

#include "cpu/simd_run_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

// o = S0^T q_decay + sum_j weight_j (k_j . q) v_j; S0 may be null, which is zero.
void replay_output(const LightningReplayScratch& x, const float* S0, const float* weight,
                   int64_t records, int64_t dim) {
  constexpr int64_t kRows = 4;  // of S, read together: o is loaded and stored once for all of them
  for (int64_t d = 0; d < dim; d += kGroup) group_store(x.o + d, group_of(0.0f));
  for (int64_t i = 0; S0 != nullptr && i < dim; i += kRows) {
    for (int64_t d = 0; d < dim; d += kGroup) {
      Group o = group_load(x.o + d);
      for (int64_t r = i; r < i + kRows; ++r) {
        o = mul_add(group_of(x.q_decay[r]), group_load(S0 + r * dim + d), o);
      }
      group_store(x.o + d, o);
    }
  }
  for (int64_t j = 0; j < records; ++j) {
    run_add_scaled(x.v + j * dim, weight[j] * run_dot(x.k + j * dim, x.q, dim), dim, x.o);
  }
}

// S <- hi S + (lo S + sum_j k_j v_decay_j^T).
void replay_flush(const LightningReplayScratch& x, float hi, float lo, int64_t records, int64_t dim,
                  float* S) {
  for (int64_t i = 0; i < dim; ++i) {
    for (int64_t d = 0; d < dim; d += kGroup) {
      float* at = S + i * dim + d;
      const Group old = group_load(at);
      Group sum = old * group_of(lo);
      for (int64_t j = 0; j < records; ++j) {
        sum = mul_add(group_of(x.k[j * dim + i]), group_load(x.v_decay + j * dim + d), sum);
      }
      group_store(at, mul_add(old, group_of(hi), sum));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(replay_output);
HWY_EXPORT(replay_flush);

namespace {

LightningReplayScratch cut(Scratch& scratch, const LightningReplayParams& params) {
  const int64_t dim = params.lightning.q.shape[2];
  const int64_t length = params.ring.keys.shape[2] + 1;
  LightningReplayScratch x;
  x.q = scratch.take<float>(dim);
  x.q_decay = scratch.take<float>(dim);
  x.k = scratch.take<float>(length * dim);
  x.v = scratch.take<float>(length * dim);
  x.v_decay = scratch.take<float>(length * dim);
  x.o = scratch.take<float>(dim);
  x.S = scratch.take<float>(dim * dim);
  return x;
}

int64_t scratch_bytes(const LightningReplayParams& params) {
  Scratch counter;
  cut(counter, params);
  return std::max(counter.bytes(), lightning_step_scratch_bytes());
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

void load_records(const Step& step, const LightningReplayScratch& x) {
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
bool flush_records(const Step& step, const LightningReplayScratch& x, float* in_place) {
  const TensorView& state = step.replay.lightning.state;
  const int64_t dim = state.shape[2];
  const int64_t records = step.pending + 1;
  for (int64_t j = 0; j < records; ++j) {
    const auto decay = static_cast<float>(decay_f64(step.slope, step.pending - j));
    for (int64_t d = 0; d < dim; ++d) x.v_decay[j * dim + d] = x.v[j * dim + d] * decay;
  }
  float* S = in_place != nullptr ? in_place : x.S;
  const SplitDecay decay = split_decay(step.slope, records);
  HWY_DYNAMIC_DISPATCH(replay_flush)(x, decay.hi, decay.lo, records, dim, S);
  return in_place != nullptr || store_state(state, step.row.slot, step.head, S);
}

bool append_record(const Step& step, const LightningReplayScratch& x) {
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
  const LightningReplayScratch x = cut(scratch, step.replay);
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
  HWY_DYNAMIC_DISPATCH(replay_output)(x, S0, weight, step.pending + 1, dim);
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
#endif
