// Reading and writing elements of tensors whose dtype is known only at run time.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/float_bits.h"
#include "linestate/tensor.h"

namespace linestate {

/// Element `index` (in elements from `data`) widened to f32; exact for f32, bf16, f16.
inline float load_f32(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kBF16:
      return bf16_to_f32(static_cast<const uint16_t*>(data)[index]);
    case DType::kF16:
      return f16_to_f32(static_cast<const uint16_t*>(data)[index]);
    default:
      return static_cast<float>(static_cast<const double*>(data)[index]);
  }
}

/// `value` rounded to nearest even into element `index`.
inline void store_f32(void* data, DType dtype, int64_t index, float value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[index] = value;
      return;
    case DType::kBF16:
      static_cast<uint16_t*>(data)[index] = f32_to_bf16(value);
      return;
    case DType::kF16:
      static_cast<uint16_t*>(data)[index] = f32_to_f16(value);
      return;
    default:
      static_cast<double*>(data)[index] = static_cast<double>(value);
      return;
  }
}

/// Element of an i32 or i64 index tensor of rank 1.
inline int64_t load_index(const ConstTensorView& tensor, int64_t i) {
  const int64_t at = i * tensor.stride[0];
  if (tensor.dtype == DType::kI64) return static_cast<const int64_t*>(tensor.data)[at];
  return static_cast<const int32_t*>(tensor.data)[at];
}

/// Offset in elements of (i), (i, j), (i, j, k), ... : always 64-bit from the first product.
template <typename Void, typename... Index>
int64_t offset_of(const BasicTensorView<Void>& tensor, Index... index) {
  int dim = 0;
  int64_t offset = 0;
  ((offset += static_cast<int64_t>(index) * tensor.stride[dim++]), ...);
  return offset;
}

/// n elements with a stride, widened to f32. A contiguous f32 run is a plain copy.
void load_run(const void* data, DType dtype, int64_t offset, int64_t stride, int64_t n, float* out);
/// n values rounded into elements with a stride. Returns false when a finite value became
/// infinite in `dtype` (f16 overflow; the caller reports it).
bool store_run(void* data, DType dtype, int64_t offset, int64_t stride, int64_t n,
               const float* values);

}  // namespace linestate
