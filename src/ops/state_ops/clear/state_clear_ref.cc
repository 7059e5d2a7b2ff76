#include "base/element.h"
#include "ops/state_ops/clear/state_clear_kernels.h"

namespace linestate {
namespace {

void clear_element(const TensorView& plane, int64_t offset, int dim) {
  if (dim == plane.rank) {
    store_f32(plane.data, plane.dtype, offset, 0.0f);
    return;
  }
  for (int64_t i = 0; i < plane.shape[dim]; ++i) {
    clear_element(plane, offset + i * plane.stride[dim], dim + 1);
  }
}

}  // namespace

Status state_clear_ref(const StateClearParams& params, const ExecContext&) {
  for (const TensorView& plane : params.planes) {
    for (int64_t i = 0; i < params.slots.shape[0]; ++i) {
      const int64_t slot = load_index(params.slots, i);
      if (slot < 0 || slot >= plane.shape[0]) continue;
      clear_element(plane, slot * plane.stride[0], 1);
    }
  }
  return {};
}

}  // namespace linestate
