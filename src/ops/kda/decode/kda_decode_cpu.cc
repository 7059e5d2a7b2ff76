// Decode on the CPU: the state is read once and written once, one V row at a time.
#include <cmath>
#include <limits>
#include <type_traits>

#include "base/device_status.h"
#include "base/int_math.h"
#include "base/row_access.h"
#include "cpu/parallel_for.h"
#include "cpu/scratch.h"
#include "ops/common/snapshot_access.h"
#include "ops/kda/decode/kda_decode_head.h"
#include "ops/kda/decode/kda_decode_kernels.h"
#include "ops/kda/kda_row_io.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kda/decode/kda_decode_cpu.cc"
#include <hwy/foreach_target.h>

#include "ops/kda/kda_math_inl.h"
#include "ops/kda/kda_row_step_inl.h"

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

constexpr int kRows = kKdaStepRows;  // rows of the state that share their loads of alpha, k and q

// Rows that are on their way to the caches while others are worked on: one memory latency's worth.
constexpr int64_t kAhead = 8;

// The rows [begin, end) of a head's state, if there are as many.
HWY_INLINE void prefetch_rows(const TensorView& state, const void* S, int64_t begin, int64_t end) {
  const int64_t size = dtype_bytes(state.dtype);
  for (int64_t v = begin; v < min_i64(end, state.shape[2]); ++v) {
    const char* row = static_cast<const char*>(S) + v * state.stride[2] * size;
    for (int64_t at = 0; at < state.shape[3] * size; at += 64) __builtin_prefetch(row + at, 1, 3);
  }
}

// One token on kRows rows from v on. `pitch_in` 0 reads one row for all: the zeros of a fresh one.
template <typename T>
HWY_INLINE void step_rows(const KdaDecodeScratch& x, int64_t K, int64_t v, const T* before,
                          int64_t pitch_in, T* after, int64_t pitch_out, OverflowWatch<T>& watch) {
  const KdaHeadToken& token = x.token;
  float predicted[kRows], u[kRows];
  kda_decay_and_predict<kRows>(token.alpha, token.k, K, before, pitch_in, x.s, predicted);
  for (int r = 0; r < kRows; ++r) u[r] = token.beta * (token.v[v + r] - predicted[r]);
  kda_update_and_read<kRows>(token.k, token.q, u, K, x.s, after, pitch_out, x.o + v, watch);
}

// The token as packs of T want it.
template <typename T>
HWY_INLINE void pack_token(int64_t K, int64_t V, KdaHeadToken& token) {
  for (float* x : {token.alpha, token.k, token.q}) to_pack_order<T>(x, K);
  if (!std::is_same_v<T, hwy::bfloat16_t>) return;
  for (float* x : {token.alpha, token.k}) clear_nan_payload(x, K);
  clear_nan_payload(token.v, V);
  if (std::isnan(token.beta)) token.beta = std::numeric_limits<float>::quiet_NaN();
}

// Rows whose elements lie side by side, read and written where they are.
template <typename T>
HWY_INLINE bool step_state(const TensorView& state, const RowInfo& row, void* first,
                           KdaDecodeScratch& x) {
  const int64_t V = state.shape[2];
  const int64_t K = state.shape[3];
  const int64_t pitch = state.stride[2];
  T* S = static_cast<T*>(first);
  pack_token<T>(K, V, x.token);
  if (row.fresh) {
    for (int64_t k = 0; k < K; ++k) x.zeros[k] = 0.0f;
  }
  const T* before = row.fresh ? reinterpret_cast<const T*>(x.zeros) : S;
  const int64_t pitch_in = row.fresh ? 0 : pitch;
  OverflowWatch<T> watch;
  for (int64_t v = 0; v < V; v += kRows) {
    prefetch_rows(state, S, v + kAhead, v + kAhead + kRows);
    step_rows<T>(x, K, v, before + v * pitch_in, pitch_in, S + v * pitch, pitch, watch);
  }
  return watch.saw_none();
}

// Any stride, through scratch.
HWY_INLINE bool step_strided_state(const TensorView& state, const RowInfo& row, int64_t j,
                                   KdaDecodeScratch& x) {
  const int64_t K = state.shape[3];
  bool fits = true;
  OverflowWatch<float> watch;
  for (int64_t v = 0; v < state.shape[2]; v += kRows) {
    for (int r = 0; r < kRows; ++r) {
      float* s = x.s + r * K;
      if (row.fresh) {
        for (int64_t k = 0; k < K; ++k) s[k] = 0.0f;
      } else {
        load_run(state.data, state.dtype, offset_of(state, row.slot, j, v + r), state.stride[3], K,
                 s);
      }
    }
    step_rows<float>(x, K, v, x.s, K, x.s, K, watch);
    for (int r = 0; r < kRows; ++r) {
      fits &= store_run(state.data, state.dtype, offset_of(state, row.slot, j, v + r),
                        state.stride[3], K, x.s + r * K);
    }
  }
  return fits;
}

// False when a finite value became infinite in the pool's dtype.
bool decode_head(const KdaParams& p, const RowInfo& row, int64_t n, int64_t j,
                 KdaDecodeScratch& x) {
  const TensorView& state = p.state;
  void* first = static_cast<char*>(state.data) +
                offset_of(state, row.slot, j) * static_cast<int64_t>(dtype_bytes(state.dtype));
  const bool dense = state.stride[3] == 1;
  if (dense && !row.fresh) prefetch_rows(state, first, 0, kAhead);
  read_kda_head_token(p, read_kda_gate_head(p, j, x.dt_bias), n, j, x.token);
  bool fits = false;
  if (!dense) {
    fits = step_strided_state(state, row, j, x);
  } else if (state.dtype == DType::kBF16) {
    fits = step_state<hwy::bfloat16_t>(state, row, first, x);
  } else if (state.dtype == DType::kF16) {
    fits = step_state<hwy::float16_t>(state, row, first, x);
  } else {
    fits = step_state<float>(state, row, first, x);
  }
  simd_store_run(p.out.data, p.out.dtype, offset_of(p.out, n, j), p.out.stride[2], p.state.shape[2],
                 x.o);
  return fits;
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(decode_head);

KdaDecodeScratch take_kda_decode_scratch(const KdaParams& p, Scratch& scratch) {
  const int64_t K = p.state.shape[3];
  const int64_t V = p.state.shape[2];
  KdaDecodeScratch out;
  out.dt_bias = scratch.take<float>(K);
  out.token = {scratch.take<float>(K), scratch.take<float>(K), scratch.take<float>(K),
               scratch.take<float>(V)};
  out.s = scratch.take<float>(kKdaStepRows * K);
  out.zeros = scratch.take<float>(K);
  out.o = scratch.take<float>(V);
  return out;
}

void decode_kda_head_cpu(const KdaParams& p, const ExecContext& context, int64_t n, int64_t j,
                         KdaDecodeScratch& scratch) {
  const RowInfo row = read_decode_row(p.rows, n, p.state.shape[0]);
  if (row.valid == 0) {
    clear_kda_out(p, n, n + 1, j);
    if (row.live && row.fresh) clear_kda_state(p.state, row, j);
    return;
  }
  const bool fits = HWY_DYNAMIC_DISPATCH(decode_head)(p, row, n, j, scratch);
  if (!fits) raise_overflow(context.status, static_cast<int32_t>(n), row.slot, p.layer);
  const RowSnapshots snapshots(p.snapshots, n, row, p.state.shape[0], row.valid);
  snapshots.at(1, [&](int64_t, int64_t slot) { copy_kda_slot(p.state, row.slot, slot, j); });
}

namespace {

int64_t scratch_bytes(const KdaParams& p) {
  Scratch count;
  take_kda_decode_scratch(p, count);
  return count.bytes();
}

}  // namespace

int64_t kda_decode_cpu_workspace(const KdaParams& params, const ExecContext& context) {
  return thread_count(context) * scratch_bytes(params);
}

Status kda_decode_cpu(const KdaParams& params, const ExecContext& context) {
  const int64_t HV = params.v.shape[1];
  const int64_t bytes = scratch_bytes(params);
  const int64_t heads = params.q.shape[0] * HV;
  const int64_t elements = heads * params.state.shape[2] * params.state.shape[3];
  parallel_for(threads_for(context, elements), heads, [&](int64_t task, int thread) {
    Scratch scratch = thread_scratch(context, thread, bytes);
    KdaDecodeScratch head = take_kda_decode_scratch(params, scratch);
    decode_kda_head_cpu(params, context, task / HV, task % HV, head);
  });
  raise_decode_snapshots_not_taken(params.snapshots, params.rows, params.state.shape[0],
                                   context.status);
  raise_if_not_finite(context, params.out);
  return {};
}

}  // namespace linestate
#endif
