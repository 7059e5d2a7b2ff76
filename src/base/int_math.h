// Integer helpers. All sizes are 64-bit.
#pragma once

#include <cstdint>

namespace linestate {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
constexpr int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace linestate
