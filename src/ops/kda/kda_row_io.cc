#include "ops/kda/kda_row_io.h"

#include <algorithm>

#include "base/device_status.h"
#include "base/element.h"
#include "base/run_copy.h"

namespace linestate {
namespace {

void clear_run(const TensorView& tensor, int64_t offset, int64_t stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store_f32(tensor.data, tensor.dtype, offset + i * stride, 0.0f);
}

}  // namespace

void load_kda_state(const TensorView& state, const RowInfo& row, int64_t head, float* S) {
  const int64_t V = state.shape[2];
  const int64_t K = state.shape[3];
  if (row.fresh) {
    std::fill(S, S + V * K, 0.0f);
    return;
  }
  for (int64_t v = 0; v < V; ++v) {
    load_run(state.data, state.dtype, offset_of(state, row.slot, head, v), state.stride[3], K,
             S + v * K);
  }
}

bool store_kda_slot(const TensorView& state, int64_t slot, int64_t head, const float* S) {
  const int64_t V = state.shape[2];
  const int64_t K = state.shape[3];
  bool fits = true;
  for (int64_t v = 0; v < V; ++v) {
    fits &= store_run(state.data, state.dtype, offset_of(state, slot, head, v), state.stride[3], K,
                      S + v * K);
  }
  return fits;
}

void store_kda_state(const KdaParams& params, const ExecContext& context, const RowInfo& row,
                     int64_t n, int64_t head, const float* S) {
  if (store_kda_slot(params.state, row.slot, head, S)) return;
  raise_overflow(context.status, static_cast<int32_t>(n), row.slot, params.layer);
}

void copy_kda_slot(const TensorView& state, int64_t from, int64_t to, int64_t head) {
  for (int64_t v = 0; v < state.shape[2]; ++v) {
    copy_run({state.data, state.dtype, offset_of(state, to, head, v), state.stride[3]},
             {state.data, state.dtype, offset_of(state, from, head, v), state.stride[3]},
             state.shape[3]);
  }
}

void clear_kda_state(const TensorView& state, const RowInfo& row, int64_t head) {
  for (int64_t v = 0; v < state.shape[2]; ++v) {
    clear_run(state, offset_of(state, row.slot, head, v), state.stride[3], state.shape[3]);
  }
}

void clear_kda_out(const KdaParams& params, int64_t begin, int64_t end, int64_t head) {
  const TensorView& out = params.out;
  for (int64_t t = begin; t < end; ++t) {
    clear_run(out, offset_of(out, t, head), out.stride[2], out.shape[2]);
  }
}

}  // namespace linestate
