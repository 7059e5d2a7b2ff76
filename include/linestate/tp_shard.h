// Tensor parallelism: which heads this rank owns. Slopes, A_log, dt_bias, convolution channels and
// norm weights are all cut by this one object.
#pragma once

#include <cstdint>

#include "linestate/status.h"

namespace linestate {

/// Half-open range of global heads.
struct HeadRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const HeadRange&) const = default;
};

struct TpShard {
  int32_t rank = 0;
  int32_t size = 1;

  /// kInvalidArgument unless size >= 1 and 0 <= rank < size.
  Status validate() const;
  /// Heads [rank * n / size, (rank + 1) * n / size).
  /// Errors: kInvalidArgument when the shard is bad or size does not divide num_heads; `what`
  /// ("num_heads", "num_value_heads") names the quantity in the message.
  Result<HeadRange> heads(int64_t num_heads, const char* what = "num_heads") const;
};

}  // namespace linestate
