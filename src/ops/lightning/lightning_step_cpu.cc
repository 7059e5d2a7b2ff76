#include "ops/lightning/lightning_step_cpu.h"

#include <type_traits>

#include "base/device_status.h"
#include "base/run_copy.h"
#include "ops/common/snapshot_access.h"
#include "ops/lightning/lightning_access.h"
#include "ops/lightning/lightning_decay.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/lightning/lightning_step_cpu.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>

#include "cpu/simd_pack_inl.h"
#include "cpu/simd_run_inl.h"

#ifndef LINESTATE_LIGHTNING_STEP_ONCE
#define LINESTATE_LIGHTNING_STEP_ONCE
namespace linestate {

constexpr int64_t kStepMostDim = 256;
constexpr int kStepRows = 4;  // rows of S whose products are added to o in one go

// One token of one head.
struct LightningStep {
  int64_t dim;
  SplitDecay lambda;
  bool fresh;
  alignas(64) float q[kStepMostDim];  // times scale
  alignas(64) float k[kStepMostDim];
  alignas(64) float v[kStepMostDim];
  alignas(64) float o[kStepMostDim];
};

}  // namespace linestate
#endif

HWY_BEFORE_NAMESPACE();
namespace linestate {
namespace HWY_NAMESPACE {

// The state streams through from memory once. Hardware prefetchers stop at a page's end and leave
// a core waiting there; asking a page ahead fills the gap (docs/kernels/lightning_prefill_cpu.md).
constexpr int64_t kAheadBytes = 4096;

// Rows [i, i + kStepRows) of S, `pitch` elements apart. x.v and x.o are in the order of packs of T.
template <bool kFresh, typename T>
HWY_INLINE void step_rows(LightningStep& x, int64_t i, T* S, int64_t pitch,
                          OverflowWatch<T>& watch) {
  Group k[kStepRows];
  Group q[kStepRows];
  for (int r = 0; r < kStepRows; ++r) {
    k[r] = group_of(x.k[i + r]);
    q[r] = group_of(x.q[i + r]);
  }
  const Group hi = group_of(x.lambda.hi);
  const Group lo = group_of(x.lambda.lo);
  for (int64_t e = 0; e < x.dim; e += kGroup) {
    const Group v = group_load(x.v + e);
    Group o = group_load(x.o + e);
    for (int r = 0; r < kStepRows; ++r) {
      T* at = S + r * pitch + e;
      hwy::Prefetch(at + kAheadBytes / static_cast<int64_t>(sizeof(T)));
      const Group old = kFresh ? group_of(0.0f) : pack_load(at);
      const Group s = mul_add(old, hi, mul_add(k[r], v, old * lo));
      for (int part = 0; part < kGroupVecs; ++part) watch.see(s.v[part]);
      pack_store(at, s);
      o = mul_add(q[r], s, o);
    }
    group_store(x.o + e, o);
  }
}

// The token as packs of T want it.
template <typename T>
HWY_INLINE void pack_token(LightningStep& x) {
  to_pack_order<T>(x.v, x.dim);
  if (!std::is_same_v<T, hwy::bfloat16_t>) return;
  clear_nan_payload(x.k, x.dim);
  clear_nan_payload(x.v, x.dim);
}

template <typename T>
HWY_INLINE bool step_dense(LightningStep& x, T* S, int64_t pitch) {
  pack_token<T>(x);
  OverflowWatch<T> watch;
  for (int64_t i = 0; i < x.dim; i += kStepRows) {
    T* rows = S + i * pitch;
    x.fresh ? step_rows<true>(x, i, rows, pitch, watch)
            : step_rows<false>(x, i, rows, pitch, watch);
  }
  from_pack_order<T>(x.o, x.dim);
  return watch.saw_none();
}

// Elements with a stride go through a copy in f32.
HWY_INLINE bool step_strided(LightningStep& x, const TensorView& state, int64_t first) {
  HWY_ALIGN float rows[kStepRows * kStepMostDim];
  bool fits = true;
  OverflowWatch<float> watch;
  for (int64_t i = 0; i < x.dim; i += kStepRows) {
    const int64_t at = first + i * state.stride[2];
    for (int r = 0; r < kStepRows && !x.fresh; ++r) {
      load_run(state.data, state.dtype, at + r * state.stride[2], state.stride[3], x.dim,
               rows + r * x.dim);
    }
    x.fresh ? step_rows<true>(x, i, rows, x.dim, watch)
            : step_rows<false>(x, i, rows, x.dim, watch);
    for (int r = 0; r < kStepRows; ++r) {
      fits &= store_run(state.data, state.dtype, at + r * state.stride[2], state.stride[3], x.dim,
                        rows + r * x.dim);
    }
  }
  return fits;
}

// The head's state moves by one token, x.o becomes its output.
bool step_state(LightningStep& x, const TensorView& state, int64_t slot, int64_t head) {
  const int64_t first = offset_of(state, slot, head);
  const int64_t pitch = state.stride[2];
  if (state.stride[3] != 1) return step_strided(x, state, first);
  switch (state.dtype) {
    case DType::kBF16:
      return step_dense(x, static_cast<hwy::bfloat16_t*>(state.data) + first, pitch);
    case DType::kF16:
      return step_dense(x, static_cast<hwy::float16_t*>(state.data) + first, pitch);
    default:
      return step_dense(x, static_cast<float*>(state.data) + first, pitch);
  }
}

HWY_INLINE void load_values(const ConstTensorView& tensor, int64_t n, int64_t head, float* values) {
  simd_load_run(tensor.data, tensor.dtype, offset_of(tensor, n, head), tensor.stride[2],
                tensor.shape[2], values);
}

void step_token(LightningStep& x, const LightningParams& params, int64_t n, int64_t head) {
  load_values(params.q, n, head, x.q);
  load_values(params.k, n, head, x.k);
  load_values(params.v, n, head, x.v);
  for (int64_t d = 0; d < x.dim; d += kGroup) {
    group_store(x.q + d, group_load(x.q + d) * group_of(params.scale));
    group_store(x.o + d, group_of(0.0f));
  }
}

void store_output(const LightningStep& x, const TensorView& out, int64_t n, int64_t head) {
  simd_store_run(out.data, out.dtype, offset_of(out, n, head), out.stride[2], x.dim, x.o);
}

}  // namespace HWY_NAMESPACE
}  // namespace linestate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linestate {

HWY_EXPORT(step_state);
HWY_EXPORT(step_token);
HWY_EXPORT(store_output);

int64_t lightning_step_scratch_bytes() {
  Scratch counter;
  counter.take<LightningStep>(1);
  return counter.bytes();
}

void lightning_step_cpu(const LightningParams& params, const ExecContext& context,
                        const RowInfo& row, int64_t n, int64_t head, Scratch scratch) {
  if (row.valid == 0) {
    zero_tokens(params.out, head, n, n + 1);
    if (row.live && row.fresh) zero_state(params.state, row.slot, head);
    return;
  }
  const TensorView& state = params.state;
  LightningStep& x = *scratch.take<LightningStep>(1);
  x.dim = params.q.shape[2];
  x.lambda =
      split_decay(load_f32(params.slopes.data, DType::kF32, offset_of(params.slopes, head)), 1);
  x.fresh = row.fresh;
  HWY_DYNAMIC_DISPATCH(step_token)(x, params, n, head);
  if (!HWY_DYNAMIC_DISPATCH(step_state)(x, state, row.slot, head)) {
    raise_overflow(context.status, static_cast<int32_t>(n), row.slot, params.layer);
  }
  HWY_DYNAMIC_DISPATCH(store_output)(x, params.out, n, head);
  const RowSnapshots snapshots(params.snapshots, n, row, state.shape[0], row.valid);
  snapshots.at(1, [&](int64_t, int64_t slot) {
    for (int64_t d = 0; d < x.dim; ++d) {
      copy_run({state.data, state.dtype, offset_of(state, slot, head, d), state.stride[3]},
               {state.data, state.dtype, offset_of(state, row.slot, head, d), state.stride[3]},
               x.dim);
    }
  });
}

}  // namespace linestate
#endif
