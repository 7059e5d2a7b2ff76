// One head's pending records. No arithmetic.
#pragma once

#include <cstdint>

#include "base/element.h"
#include "linestate/ops/replay_ring.h"

namespace linestate {

/// Record `at` of (slot, head), widened to f32. `part` is ring.keys or ring.values.
inline void load_record(const TensorView& part, int64_t slot, int64_t head, int64_t at,
                        float* values) {
  load_run(part.data, part.dtype, offset_of(part, slot, head, at), part.stride[3], part.shape[3],
           values);
}

/// Returns false when a finite value became infinite in the ring's dtype.
inline bool store_record(const TensorView& part, int64_t slot, int64_t head, int64_t at,
                         const float* values) {
  return store_run(part.data, part.dtype, offset_of(part, slot, head, at), part.stride[3],
                   part.shape[3], values);
}

/// Element i of a [N] u8 or bool tensor.
inline bool load_flag(const ConstTensorView& flags, int64_t i) {
  return static_cast<const uint8_t*>(flags.data)[i * flags.stride[0]] != 0;
}

}  // namespace linestate
