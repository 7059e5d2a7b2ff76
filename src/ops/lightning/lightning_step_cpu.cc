#include "ops/lightning/lightning_step_cpu.h"

#include <algorithm>

#include "base/device_status.h"
#include "cpu/avx2.h"
#include "ops/common/snapshot_access.h"
#include "ops/lightning/lightning_access.h"
#include "ops/lightning/lightning_decay.h"

namespace linestate {
namespace {

constexpr int64_t kRowsAtOnce = 4;  // rows of S whose products are added to o in one go

struct Buffers {
  float* q;  // [K], times scale
  float* k;  // [K]
  float* v;  // [V]
  float* o;  // [V]
  float* S;  // [kRowsAtOnce, V], used when the pool is not dense f32
};

Buffers cut(Scratch& scratch, int64_t dim) {
  Buffers x;
  x.q = scratch.take<float>(dim);
  x.k = scratch.take<float>(dim);
  x.v = scratch.take<float>(dim);
  x.o = scratch.take<float>(dim);
  x.S = scratch.take<float>(kRowsAtOnce * dim);
  return x;
}

// Rows [i, i + kRowsAtOnce) of S, rows `dim` apart in memory.
LINESTATE_INLINE void advance_rows_body(const Buffers& x, int64_t i, int64_t dim, SplitDecay lambda,
                                        float* __restrict S) {
  float* __restrict S1 = S + dim;
  float* __restrict S2 = S + 2 * dim;
  float* __restrict S3 = S + 3 * dim;
  float* __restrict o = x.o;
  const float* __restrict v = x.v;
  const float* k = x.k + i;
  const float* q = x.q + i;
  const float k0 = k[0], k1 = k[1], k2 = k[2], k3 = k[3];
  const float q0 = q[0], q1 = q[1], q2 = q[2], q3 = q[3];
  for (int64_t d = 0; d < dim; ++d) {
    const float s0 = lambda.hi * S[d] + (lambda.lo * S[d] + k0 * v[d]);
    const float s1 = lambda.hi * S1[d] + (lambda.lo * S1[d] + k1 * v[d]);
    const float s2 = lambda.hi * S2[d] + (lambda.lo * S2[d] + k2 * v[d]);
    const float s3 = lambda.hi * S3[d] + (lambda.lo * S3[d] + k3 * v[d]);
    S[d] = s0;
    S1[d] = s1;
    S2[d] = s2;
    S3[d] = s3;
    o[d] += (q0 * s0 + q1 * s1) + (q2 * s2 + q3 * s3);
  }
}

LINESTATE_AVX2 void advance_rows_avx2(const Buffers& x, int64_t i, int64_t dim, SplitDecay lambda,
                                      float* S) {
  advance_rows_body(x, i, dim, lambda, S);
}

void advance_rows(const Buffers& x, int64_t i, int64_t dim, SplitDecay lambda, float* S) {
  if (cpu_has_avx2()) return advance_rows_avx2(x, i, dim, lambda, S);
  advance_rows_body(x, i, dim, lambda, S);
}

void load_rows(const TensorView& state, const RowInfo& row, int64_t head, int64_t i, float* S) {
  const int64_t dim = state.shape[3];
  if (row.fresh) {
    std::fill(S, S + kRowsAtOnce * dim, 0.0f);
    return;
  }
  for (int64_t r = 0; r < kRowsAtOnce; ++r) {
    load_run(state.data, state.dtype, offset_of(state, row.slot, head, i + r), state.stride[3], dim,
             S + r * dim);
  }
}

bool store_rows(const TensorView& state, int64_t slot, int64_t head, int64_t i, const float* S) {
  const int64_t dim = state.shape[3];
  bool fits = true;
  for (int64_t r = 0; r < kRowsAtOnce; ++r) {
    fits &= store_run(state.data, state.dtype, offset_of(state, slot, head, i + r), state.stride[3],
                      dim, S + r * dim);
  }
  return fits;
}

}  // namespace

int64_t lightning_step_scratch_bytes(int64_t dim) {
  Scratch counter;
  cut(counter, dim);
  return counter.bytes();
}

void lightning_step_cpu(const LightningParams& params, const ExecContext& context,
                        const RowInfo& row, int64_t n, int64_t head, Scratch scratch) {
  if (row.valid == 0) {
    zero_tokens(params.out, head, n, n + 1);
    if (row.live && row.fresh) zero_state(params.state, row.slot, head);
    return;
  }
  const int64_t dim = params.q.shape[2];
  const Buffers x = cut(scratch, dim);

  const float slope = load_f32(params.slopes.data, DType::kF32, offset_of(params.slopes, head));
  const SplitDecay lambda = split_decay(slope, 1);
  std::fill(x.o, x.o + dim, 0.0f);
  load_token(params.q, n, head, x.q);
  load_token(params.k, n, head, x.k);
  load_token(params.v, n, head, x.v);
  for (int64_t d = 0; d < dim; ++d) x.q[d] *= params.scale;
  float* in_place = direct_state(params.state, row.slot, head);
  const RowSnapshots snapshots(params.snapshots, n, row, params.state.shape[0], row.valid);
  const auto store = [&](int64_t slot, int64_t i, const float* S) {
    if (store_rows(params.state, slot, head, i, S)) return;
    raise_overflow(context.status, static_cast<int32_t>(n), slot, params.layer);
  };
  for (int64_t i = 0; i < dim; i += kRowsAtOnce) {
    float* S = in_place != nullptr ? in_place + i * dim : x.S;
    if (in_place == nullptr || row.fresh) load_rows(params.state, row, head, i, S);
    advance_rows(x, i, dim, lambda, S);
    if (in_place == nullptr) store(row.slot, i, S);
    snapshots.at(1, [&](int64_t, int64_t slot) { store(slot, i, S); });
  }
  store_token(params.out, n, head, x.o);
}

}  // namespace linestate
