#include "state/slot_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/element.h"
#include "base/int_math.h"
#include "base/run_copy.h"
#include "state/slot_pack_format.h"

namespace linestate {
namespace {

struct Values {
  float at[kMostRowValues];
};
struct alignas(64) RawRow {  // a row in any dtype
  std::byte at[kMostRowValues * sizeof(float)];
};

template <typename Visit>
bool for_each_row(const SlotPlane& plane, Visit&& visit) {
  int64_t row = 0;
  for (int64_t i = 0; i < plane.size[0]; ++i) {
    for (int64_t j = 0; j < plane.size[1]; ++j, ++row) {
      if (!visit(row, i * plane.stride[0] + j * plane.stride[1])) return false;
    }
  }
  return true;
}

bool dense(const SlotPlane& plane) {
  return plane.stride[2] == 1 && plane.stride[1] == plane.size[2] &&
         (plane.size[0] == 1 || plane.stride[0] == plane.size[1] * plane.size[2]);
}

int64_t plane_bytes(const SlotPlane& plane) {
  return plane.size[0] * plane.size[1] * plane.size[2] * dtype_bytes(plane.dtype);
}

// Rounds into f16 and says whether every finite value stayed finite.
bool encode_f16(const float* values, int64_t n, std::byte* out) {
  uint16_t half[kMostRowValues];
  const bool fits = store_run(half, DType::kF16, 0, 1, n, values);
  std::memcpy(out, half, static_cast<size_t>(n) * sizeof(uint16_t));
  return fits;
}

// The scales of the row's groups, then its values: x is about scale * code, |code| <= 127.
bool encode_int8(const float* values, int64_t n, std::byte* out) {
  std::byte* codes = out + ceil_div(n, kPackGroup) * static_cast<int64_t>(sizeof(float));
  for (int64_t begin = 0; begin < n; begin += kPackGroup) {
    const int64_t end = min_i64(begin + kPackGroup, n);
    float most = 0.0f;
    bool finite = true;
    for (int64_t i = begin; i < end; ++i) {
      finite = finite && std::isfinite(values[i]);
      most = std::max(most, std::fabs(values[i]));
    }
    if (!finite) return false;
    float scale = most / 127.0f;
    // Near the largest f32 a quotient that was rounded up would read back as infinity.
    if (!std::isfinite(scale * 127.0f)) scale = std::nextafter(scale, 0.0f);
    std::memcpy(out + begin / kPackGroup * static_cast<int64_t>(sizeof(float)), &scale,
                sizeof(float));
    for (int64_t i = begin; i < end; ++i) {
      // A scale below f32's normal range is coarse, so the quotient may pass 127.
      const float code = scale > 0.0f ? std::nearbyint(values[i] / scale) : 0.0f;
      codes[i] = static_cast<std::byte>(static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f)));
    }
  }
  return true;
}

void decode_int8(const std::byte* in, int64_t n, float* values) {
  const std::byte* codes = in + ceil_div(n, kPackGroup) * static_cast<int64_t>(sizeof(float));
  for (int64_t i = 0; i < n; ++i) {
    float scale = 0.0f;
    std::memcpy(&scale, in + i / kPackGroup * static_cast<int64_t>(sizeof(float)), sizeof(float));
    values[i] = scale * static_cast<float>(static_cast<int8_t>(codes[i]));
  }
}

bool good_scales(const std::byte* in, int64_t n) {
  for (int64_t group = 0; group < ceil_div(n, kPackGroup); ++group) {
    float scale = 0.0f;
    std::memcpy(&scale, in + group * static_cast<int64_t>(sizeof(float)), sizeof(float));
    if (!(scale >= 0.0f) || !std::isfinite(scale * 127.0f)) return false;
  }
  return true;
}

void decode_row(const std::byte* in, int64_t n, Encoding encoding, Values& values) {
  if (encoding.scheme == PackScheme::kInt8) return decode_int8(in, n, values.at);
  const DType stored = encoding.scheme == PackScheme::kF16 ? DType::kF16 : encoding.dtype;
  RawRow raw;
  std::memcpy(raw.at, in, static_cast<size_t>(n * dtype_bytes(stored)));
  load_run(raw.at, stored, 0, 1, n, values.at);
}

bool same_bits(const SlotPlane& plane, Encoding encoding) {
  return encoding.scheme == PackScheme::kExact && encoding.dtype == plane.dtype;
}

}  // namespace

SlotPlane slot_plane(const TensorView& plane, int64_t slot) {
  SlotPlane made;
  made.data = static_cast<char*>(plane.data) + slot * plane.stride[0] * dtype_bytes(plane.dtype);
  made.dtype = plane.dtype;
  const auto inner = static_cast<size_t>(plane.rank - 1);
  made.size = {1, 1, 1};
  for (size_t dim = 0; dim < inner; ++dim) {
    made.size[3 - inner + dim] = plane.shape[dim + 1];
    made.stride[3 - inner + dim] = plane.stride[dim + 1];
  }
  return made;
}

int64_t encoded_row_bytes(int64_t n, DType dtype, PackScheme scheme) {
  switch (scheme) {
    case PackScheme::kExact:
      return n * dtype_bytes(dtype);
    case PackScheme::kF16:
      return n * dtype_bytes(DType::kF16);
    case PackScheme::kInt8:
      return ceil_div(n, kPackGroup) * static_cast<int64_t>(sizeof(float)) + n;
  }
  return 0;
}

bool encode_plane(const SlotPlane& plane, PackScheme scheme, std::byte* out) {
  if (scheme == PackScheme::kExact && dense(plane)) {
    std::memcpy(out, plane.data, static_cast<size_t>(plane_bytes(plane)));
    return true;
  }
  const int64_t n = plane.size[2];
  const int64_t row_bytes = encoded_row_bytes(n, plane.dtype, scheme);
  return for_each_row(plane, [&](int64_t row, int64_t offset) {
    std::byte* to = out + row * row_bytes;
    if (scheme == PackScheme::kExact) {
      RawRow raw;
      copy_run({raw.at, plane.dtype, 0, 1}, {plane.data, plane.dtype, offset, plane.stride[2]}, n);
      std::memcpy(to, raw.at, static_cast<size_t>(row_bytes));
      return true;
    }
    Values values;
    load_run(plane.data, plane.dtype, offset, plane.stride[2], n, values.at);
    return scheme == PackScheme::kF16 ? encode_f16(values.at, n, to)
                                      : encode_int8(values.at, n, to);
  });
}

DecodeProblem check_decode(const SlotPlane& plane, Encoding encoding, const std::byte* in) {
  const bool scales = encoding.scheme == PackScheme::kInt8;
  const bool narrows = plane.dtype != DType::kF32 && !same_bits(plane, encoding) &&
                       !(encoding.scheme == PackScheme::kF16 && plane.dtype == DType::kF16);
  if (!scales && !narrows) return DecodeProblem::kNone;
  const int64_t n = plane.size[2];
  const int64_t row_bytes = encoded_row_bytes(n, encoding.dtype, encoding.scheme);
  DecodeProblem problem = DecodeProblem::kNone;
  for_each_row(plane, [&](int64_t row, int64_t) {
    if (scales && !good_scales(in + row * row_bytes, n)) {
      problem = DecodeProblem::kBadScale;
    } else if (narrows) {
      Values values;
      decode_row(in + row * row_bytes, n, encoding, values);
      for (int64_t i = 0; i < n && problem == DecodeProblem::kNone; ++i) {
        double stored = 0.0;  // room for any dtype
        store_f32(&stored, plane.dtype, 0, values.at[i]);
        const bool fits = std::isfinite(load_f32(&stored, plane.dtype, 0));
        if (!fits && std::isfinite(values.at[i])) problem = DecodeProblem::kOverflow;
      }
    }
    return problem == DecodeProblem::kNone;
  });
  return problem;
}

void decode_plane(const SlotPlane& plane, Encoding encoding, const std::byte* in) {
  const bool bits = same_bits(plane, encoding);
  if (bits && dense(plane)) {
    std::memcpy(plane.data, in, static_cast<size_t>(plane_bytes(plane)));
    return;
  }
  const int64_t n = plane.size[2];
  const int64_t row_bytes = encoded_row_bytes(n, encoding.dtype, encoding.scheme);
  for_each_row(plane, [&](int64_t row, int64_t offset) {
    if (bits) {
      RawRow raw;
      std::memcpy(raw.at, in + row * row_bytes, static_cast<size_t>(row_bytes));
      copy_run({plane.data, plane.dtype, offset, plane.stride[2]}, {raw.at, plane.dtype, 0, 1}, n);
    } else {
      Values values;
      decode_row(in + row * row_bytes, n, encoding, values);
      store_run(plane.data, plane.dtype, offset, plane.stride[2], n, values.at);
    }
    return true;
  });
}

}  // namespace linestate
