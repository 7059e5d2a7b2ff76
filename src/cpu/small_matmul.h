// A dense matrix product for operands that fit a core's caches.
#pragma once

#include <cstdint>

namespace linestate {

struct SmallMatmul {
  const float* a = nullptr;  // [M, K], rows a_pitch apart
  const float* b = nullptr;  // [K, N], rows b_pitch apart
  float* c = nullptr;        // [M, N], rows c_pitch apart; apart from a and b
  int64_t a_pitch = 0;
  int64_t b_pitch = 0;
  int64_t c_pitch = 0;
  int64_t m = 0;         // a multiple of 4
  int64_t n = 0;         // a multiple of 16
  int64_t k = 0;         // any, 0 too
  float keep_hi = 1.0f;  // C is multiplied by keep_hi + keep_lo before the product is added
  float keep_lo = 0.0f;
};

/// C <- keep_hi * C + (keep_lo * C + A B).
/// Every element is one chain of f32 multiplications and additions, k rising, never fused: its bits
/// depend on its own row of A and column of B alone, on every CPU.
void small_matmul(const SmallMatmul& op);

}  // namespace linestate
