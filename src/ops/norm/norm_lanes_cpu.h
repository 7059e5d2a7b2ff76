// The two passes of every norm on the CPU, over runs of channels.
#pragma once

#include <cstdint>

#include "base/run_copy.h"

namespace linestate {

/// Sum of squares in f32. Element i goes to partial sum i mod 16 and the partial sums meet in a
/// fixed tree, so the bits depend on the values and n alone.
float norm_sum_sq(const ConstRun& x, int64_t n);

/// out = x * factor * weight, times sigmoid(gate) unless gate.data is null. `out` may be x.
void norm_scale(const ConstRun& x, float factor, const ConstRun& weight, const ConstRun& gate,
                const Run& out, int64_t n);

}  // namespace linestate
