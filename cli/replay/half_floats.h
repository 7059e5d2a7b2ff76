// bf16 and fp16 fast enough for every activation and every compared value. Rounds to nearest even.
#pragma once

#include <bit>
#include <cstdint>

#include "linestate/tensor.h"

namespace linestate::cli {

/// REQUIRES: not NaN.
inline uint16_t round_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// REQUIRES: |value| < 65520.
inline uint16_t round_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 the last bit stands for 2^-24: the sum with 0.5 rounds there.
  const uint32_t small =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  return static_cast<uint16_t>(sign | (magnitude < 0x38800000u ? small : normal));
}

inline float widen_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline float widen_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude < 0x400u) {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t exponent = magnitude >= 0x7c00u ? 0x70000000u : 112u << 23;
  return std::bit_cast<float>(sign | ((magnitude << 13) + exponent));
}

/// Element of an f32, bf16 or f16 tensor.
inline float widen(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return dtype == DType::kBF16 ? widen_bf16(bits) : widen_f16(bits);
}

/// `value` as it comes back after a store in `dtype`.
inline float rounded(float value, DType dtype) {
  if (dtype == DType::kF32) return value;
  return dtype == DType::kBF16 ? widen_bf16(round_to_bf16(value)) : widen_f16(round_to_f16(value));
}

}  // namespace linestate::cli
