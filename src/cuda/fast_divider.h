// Division by a number that the host knows: a multiplication on the device. A kernel that takes its
// block number apart by plain 64-bit division waits for it longer than for memory.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define LINESTATE_HOST_DEVICE __host__ __device__
#else
#define LINESTATE_HOST_DEVICE
#endif

namespace linestate {

/// Quotient and rest of numbers below 2^31. REQUIRES: 1 <= divisor < 2^31.
struct FastDivider {
  uint32_t divisor = 1;
  uint32_t factor = 1;
  uint32_t shift = 0;

  FastDivider() = default;
  explicit FastDivider(int64_t d) : divisor(static_cast<uint32_t>(d)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    factor = static_cast<uint32_t>((((uint64_t{1} << shift) - divisor) << 32) / divisor + 1);
  }
  LINESTATE_HOST_DEVICE uint32_t divide(uint32_t n, uint32_t& rest) const {
    const auto high = static_cast<uint32_t>((static_cast<uint64_t>(n) * factor) >> 32);
    const uint32_t quotient = (high + n) >> shift;
    rest = n - quotient * divisor;
    return quotient;
  }
};

}  // namespace linestate
