// Tensors as kernels take them: by value, small, every offset 64-bit; and the access to their
// elements. Maths is f32; 16-bit values are widened exactly and narrowed to nearest even.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "linestate/tensor.h"

namespace linestate {

/// REQUIRES: the view's rank is kRank. An undefined view gives data = null.
template <int kRank>
struct DeviceView {
  void* data = nullptr;
  int64_t stride[kRank] = {};
  DType dtype = DType::kF32;
  bool packed = false;  // four neighbours in the last dimension are one aligned access

  template <typename... Index>
  __device__ int64_t offset(Index... index) const {
    int64_t at = 0;
    int dim = 0;
    ((at += static_cast<int64_t>(index) * stride[dim++]), ...);
    return at;
  }
  __device__ int64_t step() const { return stride[kRank - 1]; }
};

/// An index tensor: [n] i32 or i64.
struct IndexView {
  const void* data = nullptr;
  int64_t stride = 0;
  bool wide = false;

  __host__ __device__ bool defined() const { return data != nullptr; }
  /// Without a branch, so that several are on their way at once.
  __device__ int64_t at(int64_t i) const {
    const auto* words = static_cast<const int32_t*>(data) + (i * stride << (wide ? 1 : 0));
    const int32_t low = words[0];
    const int32_t high = wide ? words[1] : low >> 31;
    return static_cast<int64_t>(high) << 32 | static_cast<uint32_t>(low);
  }
};

template <int kRank>
DeviceView<kRank> device_view(const ConstTensorView& tensor) {
  DeviceView<kRank> view;
  if (!tensor.defined()) return view;
  view.data = const_cast<void*>(tensor.data);
  view.dtype = tensor.dtype;
  const int64_t bytes = 4 * dtype_bytes(tensor.dtype);
  view.packed = tensor.stride[kRank - 1] == 1 &&
                reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(bytes) == 0;
  for (int dim = 0; dim < kRank; ++dim) {
    view.stride[dim] = tensor.stride[dim];
    if (dim < kRank - 1 && tensor.shape[dim] > 1 && tensor.stride[dim] % 4 != 0) {
      view.packed = false;
    }
  }
  return view;
}

inline IndexView index_view(const ConstTensorView& tensor) {
  if (!tensor.defined()) return {};
  // An empty tensor may have no memory, and is defined all the same.
  static const int64_t kNothing = 0;
  return {tensor.data == nullptr ? &kNothing : tensor.data, tensor.stride[0],
          tensor.dtype == DType::kI64};
}

__device__ inline float bf16_bits_to_f32(uint32_t bits) { return __uint_as_float(bits << 16); }

__device__ inline float f16_bits_to_f32(uint32_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<uint16_t>(bits)));
  return value;
}

__device__ inline uint32_t f32_to_bf16_bits(float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ inline uint32_t f32_to_f16_bits(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

/// One element as it lies in memory; widening apart from the load lets other work wait between.
__device__ inline uint32_t load_bits(const void* data, DType dtype, int64_t at) {
  if (dtype == DType::kF32) return static_cast<const uint32_t*>(data)[at];
  return static_cast<const uint16_t*>(data)[at];
}

__device__ inline float widen_bits(uint32_t bits, DType dtype) {
  if (dtype == DType::kF32) return __uint_as_float(bits);
  return dtype == DType::kBF16 ? bf16_bits_to_f32(bits) : f16_bits_to_f32(bits);
}

__device__ inline float load_f32(const void* data, DType dtype, int64_t at) {
  return widen_bits(load_bits(data, dtype, at), dtype);
}

/// True when a finite f32 became infinite.
__device__ inline bool f16_overflowed(uint32_t bits, float value) {
  return (bits & 0x7fffu) == 0x7c00u && !isinf(value);
}

/// Returns false when a finite value became infinite in f16.
__device__ inline bool store_f32(void* data, DType dtype, int64_t at, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[at] = value;
    return true;
  }
  const bool bf16 = dtype == DType::kBF16;
  const uint32_t bits = bf16 ? f32_to_bf16_bits(value) : f32_to_f16_bits(value);
  static_cast<uint16_t*>(data)[at] = static_cast<uint16_t>(bits);
  return bf16 || !f16_overflowed(bits, value);
}

template <int kRank, typename... Index>
__device__ float load_at(const DeviceView<kRank>& view, Index... index) {
  return load_f32(view.data, view.dtype, view.offset(index...));
}

template <int kRank, typename... Index>
__device__ void store_at(const DeviceView<kRank>& view, float value, Index... index) {
  store_f32(view.data, view.dtype, view.offset(index...), value);
}

/// Four neighbours as they lie in memory; 16-bit types fill x and y.
__device__ inline uint4 load_quad_bits(const void* data, bool narrow, int64_t at) {
  if (!narrow) return *reinterpret_cast<const uint4*>(static_cast<const float*>(data) + at);
  const uint2 bits = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(data) + at);
  return make_uint4(bits.x, bits.y, 0, 0);
}

/// load_quad_bits without a branch, so that several are on their way at once; zeros, and nothing is
/// read, when `live` is false. For memory that the kernel does not write.
__device__ inline uint4 read_quad_bits(const void* data, bool narrow, int64_t at, bool live) {
  uint4 bits = make_uint4(0, 0, 0, 0);
  const char* from = static_cast<const char*>(data) + at * (narrow ? 2 : 4);
  asm volatile(
      "{\n.reg .pred n, w;\nsetp.eq.s32 n, %5, 1;\nsetp.eq.s32 w, %5, 2;\n"
      "@n ld.global.v2.u32 {%0, %1}, [%4];\n@w ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w)
      : "l"(from), "r"(live ? (narrow ? 1 : 2) : 0));
  return bits;
}

/// One element likewise.
__device__ inline uint32_t read_element_bits(const void* data, bool narrow, int64_t at, bool live) {
  uint32_t bits = 0;
  const char* from = static_cast<const char*>(data) + at * (narrow ? 2 : 4);
  asm volatile(
      "{\n.reg .pred n, w;\nsetp.eq.s32 n, %2, 1;\nsetp.eq.s32 w, %2, 2;\n"
      "@n ld.global.u16 %0, [%1];\n@w ld.global.u32 %0, [%1];\n}"
      : "+r"(bits)
      : "l"(from), "r"(live ? (narrow ? 1 : 2) : 0));
  return bits;
}

__device__ inline float widen_element(uint32_t bits, DType dtype) {
  if (dtype == DType::kF32) return __uint_as_float(bits);
  return dtype == DType::kBF16 ? bf16_bits_to_f32(bits) : f16_bits_to_f32(bits);
}

__device__ inline void widen_quad(uint4 bits, DType dtype, float* out) {
  if (dtype == DType::kF32) {
    out[0] = __uint_as_float(bits.x);
    out[1] = __uint_as_float(bits.y);
    out[2] = __uint_as_float(bits.z);
    out[3] = __uint_as_float(bits.w);
  } else if (dtype == DType::kBF16) {
    out[0] = __uint_as_float(bits.x << 16);
    out[1] = __uint_as_float(bits.x & 0xffff0000u);
    out[2] = __uint_as_float(bits.y << 16);
    out[3] = __uint_as_float(bits.y & 0xffff0000u);
  } else {
    out[0] = f16_bits_to_f32(bits.x & 0xffffu);
    out[1] = f16_bits_to_f32(bits.x >> 16);
    out[2] = f16_bits_to_f32(bits.y & 0xffffu);
    out[3] = f16_bits_to_f32(bits.y >> 16);
  }
}

/// Elements at, at + step, at + 2 step, at + 3 step.
template <int kRank>
__device__ void load_quad(const DeviceView<kRank>& view, int64_t at, float* out) {
  if (view.packed) {
    widen_quad(load_quad_bits(view.data, view.dtype != DType::kF32, at), view.dtype, out);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = load_f32(view.data, view.dtype, at + i * view.step());
}

/// Four neighbours of a 16-bit type. Returns false when a finite value became infinite in f16.
__device__ inline bool store_narrow_quad(void* data, DType dtype, int64_t at, const float* in) {
  bool fits = true;
  uint32_t low;
  uint32_t high;
  if (dtype == DType::kBF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(in[1]), "f"(in[0]));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(in[3]), "f"(in[2]));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(in[1]), "f"(in[0]));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(in[3]), "f"(in[2]));
    // 65520 is the least f32 that rounds to infinity.
    const float most = fmaxf(fmaxf(fabsf(in[0]), fabsf(in[1])), fmaxf(fabsf(in[2]), fabsf(in[3])));
    if (most >= 65520.0f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        fits &= !f16_overflowed((i < 2 ? low : high) >> 16 * (i % 2), in[i]);
      }
    }
  }
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(data) + at) = make_uint2(low, high);
  return fits;
}

/// Returns false when a finite value became infinite in f16.
template <int kRank>
__device__ bool store_quad(const DeviceView<kRank>& view, int64_t at, const float* in) {
  bool fits = true;
  if (!view.packed) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      fits &= store_f32(view.data, view.dtype, at + i * view.step(), in[i]);
    }
    return fits;
  }
  if (view.dtype == DType::kF32) {
    *reinterpret_cast<float4*>(static_cast<float*>(view.data) + at) =
        make_float4(in[0], in[1], in[2], in[3]);
    return true;
  }
  return store_narrow_quad(view.data, view.dtype, at, in);
}

}  // namespace linestate
