#include <cmath>
#include <cstring>

#include "base/device_status.h"
#include "base/element.h"
#include "ops/state_ops/copy/state_copy_kernels.h"

namespace linestate {
namespace {

// Returns false when a finite value became infinite.
bool copy_element(const ConstTensorView& src, int64_t src_at, const TensorView& dst,
                  int64_t dst_at) {
  if (src.dtype == dst.dtype) {
    const int64_t size = dtype_bytes(src.dtype);
    std::memcpy(static_cast<char*>(dst.data) + dst_at * size,
                static_cast<const char*>(src.data) + src_at * size, static_cast<size_t>(size));
    return true;
  }
  const float value = load_f32(src.data, src.dtype, src_at);
  store_f32(dst.data, dst.dtype, dst_at, value);
  return !std::isfinite(value) || std::isfinite(load_f32(dst.data, dst.dtype, dst_at));
}

bool copy_from(const ConstTensorView& src, int64_t src_at, const TensorView& dst, int64_t dst_at,
               int dim) {
  if (dim == src.rank) return copy_element(src, src_at, dst, dst_at);
  bool fits = true;
  for (int64_t i = 0; i < src.shape[dim]; ++i) {
    fits &=
        copy_from(src, src_at + i * src.stride[dim], dst, dst_at + i * dst.stride[dim], dim + 1);
  }
  return fits;
}

}  // namespace

Status state_copy_ref(const StateCopyParams& params, const ExecContext& context) {
  for (size_t p = 0; p < params.src.size(); ++p) {
    const ConstTensorView& src = params.src[p];
    const TensorView& dst = params.dst[p];
    for (int64_t i = 0; i < params.src_slots.shape[0]; ++i) {
      const int64_t from = load_index(params.src_slots, i);
      const int64_t to = load_index(params.dst_slots, i);
      if (from < 0 || from >= src.shape[0] || to < 0 || to >= dst.shape[0]) continue;
      if (copy_from(src, from * src.stride[0], dst, to * dst.stride[0], 1)) continue;
      raise_overflow(context.status, static_cast<int32_t>(i), to, static_cast<int32_t>(p));
    }
  }
  return {};
}

}  // namespace linestate
