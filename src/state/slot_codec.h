// Values of one plane of one slot to bytes and back. Knows no headers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "linestate/state/slot_pack.h"
#include "linestate/tensor.h"

namespace linestate {

/// The largest innermost dimension: head dims are at most this.
inline constexpr int64_t kMostRowValues = 256;

/// One slot of a recurrent state [heads, V|K, K|V] or of a window [1, channels, W-1].
struct SlotPlane {
  void* data = nullptr;  // first element of the slot
  DType dtype = DType::kF32;
  std::array<int64_t, 3> size{};
  std::array<int64_t, 3> stride{};  // elements
};
/// REQUIRES: rank 3 or 4, 0 <= slot < P.
SlotPlane slot_plane(const TensorView& plane, int64_t slot);

/// Bytes of one innermost row of n values.
int64_t encoded_row_bytes(int64_t n, DType dtype, PackScheme scheme);

/// False when a value does not fit the scheme (f16 range; not finite for int8).
/// REQUIRES: out holds size[0] * size[1] rows.
bool encode_plane(const SlotPlane& plane, PackScheme scheme, std::byte* out);

/// How a plane was encoded: of which dtype before, by which scheme.
struct Encoding {
  DType dtype = DType::kF32;
  PackScheme scheme = PackScheme::kExact;
};
enum class DecodeProblem : uint8_t {
  kNone,
  kBadScale,  // a scale that encode_plane never writes
  kOverflow,  // a finite value beyond the range of the plane's dtype
};
/// What keeps decode_plane from writing every value. Writes nothing.
DecodeProblem check_decode(const SlotPlane& plane, Encoding encoding, const std::byte* in);
/// REQUIRES: check_decode gave kNone.
void decode_plane(const SlotPlane& plane, Encoding encoding, const std::byte* in);

}  // namespace linestate
