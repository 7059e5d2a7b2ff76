#include "base/check.h"
#include "linestate/ops/kda.h"

namespace linestate {

Result<PackedQkv> split_packed_qkv(const ConstTensorView& packed, int64_t num_heads,
                                   int64_t num_value_heads, int64_t k_dim, int64_t v_dim) try {
  constexpr int64_t kMost = int64_t{1} << 24;  // keeps the products below in range
  for (int64_t size : {num_heads, num_value_heads, k_dim, v_dim}) {
    if (size < 1 || size > kMost) {
      return invalid_argument("split_packed_qkv: expected sizes from 1 to ", kMost, ", got ", size);
    }
  }
  const int64_t key_width = num_heads * k_dim;
  const int64_t value_width = num_value_heads * v_dim;
  LINESTATE_RETURN_IF_ERROR(check_shape("packed", packed, {kAnySize, 2 * key_width + value_width}));
  PackedQkv parts;
  parts.q = packed.slice(1, 0, key_width).split(1, k_dim);
  parts.k = packed.slice(1, key_width, 2 * key_width).split(1, k_dim);
  parts.v = packed.slice(1, 2 * key_width, 2 * key_width + value_width).split(1, v_dim);
  return parts;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace linestate
