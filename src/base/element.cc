#include "base/element.h"

#include <cmath>

namespace linestate {

void load_run(const void* data, DType dtype, int64_t offset, int64_t stride, int64_t n,
              float* out) {
  if (dtype == DType::kF32) {
    const float* in = static_cast<const float*>(data) + offset;
    if (stride == 1) {
      std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
      return;
    }
    for (int64_t i = 0; i < n; ++i) out[i] = in[i * stride];
    return;
  }
  const uint16_t* in = static_cast<const uint16_t*>(data) + offset;
  if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_f32(in[i * stride]);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = f16_to_f32(in[i * stride]);
  }
}

bool store_run(void* data, DType dtype, int64_t offset, int64_t stride, int64_t n,
               const float* values) {
  if (dtype == DType::kF32) {
    float* out = static_cast<float*>(data) + offset;
    if (stride == 1) {
      std::memcpy(out, values, static_cast<size_t>(n) * sizeof(float));
      return true;
    }
    for (int64_t i = 0; i < n; ++i) out[i * stride] = values[i];
    return true;
  }
  uint16_t* out = static_cast<uint16_t*>(data) + offset;
  if (dtype == DType::kBF16) {
    // bf16 has f32's range: only values within half a step of the largest f32 overflow.
    for (int64_t i = 0; i < n; ++i) out[i * stride] = f32_to_bf16(values[i]);
    return true;
  }
  bool fits = true;
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = f32_to_f16(values[i]);
    fits &= (bits & 0x7fffu) != 0x7c00u || std::isinf(values[i]);
    out[i * stride] = bits;
  }
  return fits;
}

}  // namespace linestate
