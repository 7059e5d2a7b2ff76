// Element access of one head, shared by the Lightning kernels on the CPU. No arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/element.h"
#include "linestate/ops/lightning.h"

namespace linestate {

/// Token `token` of head `head` of a [T, H, D] tensor, widened to f32.
inline void load_token(const ConstTensorView& tensor, int64_t token, int64_t head, float* values) {
  load_run(tensor.data, tensor.dtype, offset_of(tensor, token, head), tensor.stride[2],
           tensor.shape[2], values);
}

inline void store_token(const TensorView& out, int64_t token, int64_t head, const float* values) {
  store_run(out.data, out.dtype, offset_of(out, token, head), out.stride[2], out.shape[2], values);
}

/// Zero output for tokens [begin, end) of one head.
inline void zero_tokens(const TensorView& out, int64_t head, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t d = 0; d < out.shape[2]; ++d) {
      store_f32(out.data, out.dtype, offset_of(out, t, head, d), 0.0f);
    }
  }
}

/// State [K, V] of (slot, head) as f32, row-major; zeros for a fresh row, whatever the slot holds.
inline void load_state(const TensorView& state, int64_t slot, int64_t head, bool fresh, float* s) {
  const int64_t dim = state.shape[2];
  if (fresh) {
    std::fill(s, s + dim * dim, 0.0f);
    return;
  }
  for (int64_t k = 0; k < dim; ++k) {
    load_run(state.data, state.dtype, offset_of(state, slot, head, k), state.stride[3], dim,
             s + k * dim);
  }
}

/// What a fresh row without tokens leaves behind.
inline void zero_state(const TensorView& state, int64_t slot, int64_t head) {
  for (int64_t k = 0; k < state.shape[2]; ++k) {
    for (int64_t v = 0; v < state.shape[3]; ++v) {
      store_f32(state.data, state.dtype, offset_of(state, slot, head, k, v), 0.0f);
    }
  }
}

/// Returns false when a finite value became infinite in the pool's dtype.
inline bool store_state(const TensorView& state, int64_t slot, int64_t head, const float* s) {
  const int64_t dim = state.shape[2];
  bool fits = true;
  for (int64_t k = 0; k < dim; ++k) {
    fits &= store_run(state.data, state.dtype, offset_of(state, slot, head, k), state.stride[3],
                      dim, s + k * dim);
  }
  return fits;
}

/// The state itself when it lies in memory as kernels want it, else null.
inline float* direct_state(const TensorView& state, int64_t slot, int64_t head) {
  const bool dense =
      state.dtype == DType::kF32 && state.stride[3] == 1 && state.stride[2] == state.shape[3];
  return dense ? static_cast<float*>(state.data) + offset_of(state, slot, head) : nullptr;
}

}  // namespace linestate
