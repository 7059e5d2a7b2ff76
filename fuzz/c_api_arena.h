// Tensors from fuzzed bytes: sensible or hostile shapes, strides, dtypes and ids, each tensor in an
// arena of its own whose other bytes are canaries and NaN.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "linestate/c_api.h"

namespace linestate::fuzzing {

inline constexpr int64_t kMostArenaBytes = 1 << 15;
inline constexpr unsigned char kCanary =
    0xff;  // NaN in every floating dtype, -1 in every integer one

/// Numbers from the input; zeros behind its end.
class Source {
 public:
  Source(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t byte() { return at_ < size_ ? data_[at_++] : uint8_t{0}; }
  bool ended() const { return at_ == size_; }
  int64_t below(int64_t bound) { return byte() % bound; }
  bool rarely() { return byte() > 250; }
  /// Any 64-bit value, mostly near zero or near the ends.
  int64_t hostile() {
    constexpr int64_t kEnds[] = {-1, INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, 1 << 20, 0, 257};
    const uint8_t pick = byte();
    return pick < 8 ? kEnds[pick] : static_cast<int8_t>(byte());
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

inline int64_t bytes_of(int32_t dtype) {
  constexpr int64_t kBytes[] = {4, 2, 2, 8, 4, 8, 1, 1};
  return dtype >= 0 && dtype < 8 ? kBytes[dtype] : 8;
}

/// One tensor's memory. `owned` marks the bytes of its elements.
struct Arena {
  std::vector<unsigned char> bytes;
  std::vector<unsigned char> before;
  std::vector<unsigned char> owned;
  bool writable = false;

  void allocate(int64_t size) {
    bytes.assign(static_cast<size_t>(size), kCanary);
    owned.assign(static_cast<size_t>(size), 0);
  }
};

class Fuzz {
 public:
  explicit Fuzz(Source& source) : in_(source) { arenas_.reserve(32); }

  /// A tensor near the wanted shape whose every element lies in an arena of its own, or one that
  /// the conversion or the operator must refuse before it touches memory.
  ls_tensor tensor(bool writable, int32_t dtype, std::initializer_list<int64_t> shape) {
    Arena& arena = arenas_.emplace_back();
    arena.writable = writable;
    ls_tensor view{};
    view.dtype = in_.rarely() ? static_cast<int32_t>(in_.below(10)) : dtype;
    view.rank = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), view.shape);
    if (in_.rarely()) view.shape[in_.below(view.rank)] = in_.below(20);
    set_strides(view);
    place(view, arena);
    if (in_.rarely()) spoil(view);
    return view;
  }

  ls_tensor floats(bool writable, std::initializer_list<int64_t> shape) {
    const int32_t dtype = static_cast<int32_t>(in_.below(3));
    ls_tensor view = tensor(writable, in_.rarely() ? dtype : float_dtype_, shape);
    if (!writable) fill(view, [this](int32_t) { return in_.byte() % 16 * 0x08; });
    return view;
  }

  /// Ids that are mostly what `value(i)` says.
  template <typename Value>
  ls_tensor ids(int64_t count, const Value& value) {
    return ids_of(in_.byte() % 2 == 0 ? LS_I32 : LS_I64, false, count, value);
  }
  template <typename Value>
  ls_tensor ids_of(int32_t dtype, bool writable, int64_t count, const Value& value) {
    ls_tensor view = tensor(writable, dtype, {count});
    const bool sound = view.rank == 1 && view.dtype == dtype && view.data != nullptr &&
                       view.shape[0] <= 64 && view.stride[0] > -64 && view.stride[0] < 64;
    for (int64_t i = 0; sound && i < view.shape[0]; ++i) {
      const int64_t id = in_.rarely() ? in_.hostile() : value(i);
      const auto narrow = static_cast<int32_t>(id);
      char* at = static_cast<char*>(view.data) + i * view.stride[0] * bytes_of(dtype);
      const void* bytes = dtype == LS_I64 ? static_cast<const void*>(&id) : &narrow;
      std::memcpy(at, bytes, static_cast<size_t>(bytes_of(dtype)));  // little-endian
    }
    return view;
  }

  void use_dtype(int32_t dtype) { float_dtype_ = dtype; }

  void snapshot_arenas() {
    for (Arena& arena : arenas_) arena.before = arena.bytes;
  }

  /// Inputs keep every byte; outputs keep those between and around their elements.
  void check_arenas() const {
    for (const Arena& arena : arenas_) {
      if (arena.bytes == arena.before) continue;
      for (size_t i = 0; i < arena.bytes.size(); ++i) {
        const bool may_change = arena.writable && arena.owned[i] != 0;
        if (!may_change && arena.bytes[i] != arena.before[i]) std::abort();
      }
    }
  }

 private:
  void set_strides(ls_tensor& view) {
    int64_t stride = 1 + (in_.byte() > 200 ? in_.below(3) : 0);
    for (int32_t dim = view.rank - 1; dim >= 0; --dim) {
      view.stride[dim] = stride;
      stride =
          stride * std::max<int64_t>(view.shape[dim], 1) + (in_.byte() > 200 ? in_.below(5) : 0);
      if (in_.rarely()) view.stride[dim] = in_.hostile() % 4096;  // 0, negative, overlapping
    }
  }

  // First and last element inside the arena, with canaries on both sides; elements marked.
  void place(ls_tensor& view, Arena& arena) {
    int64_t low = 0, high = 0, count = 1;
    for (int32_t dim = 0; dim < view.rank; ++dim) {
      count *= view.shape[dim];
      const int64_t reach = (view.shape[dim] - 1) * view.stride[dim];
      (reach < 0 ? low : high) += view.shape[dim] > 0 ? reach : 0;
    }
    const int64_t size = bytes_of(view.dtype);
    constexpr int64_t kMargin = 64;
    if ((high - low + 1) * size > kMostArenaBytes - 2 * kMargin) {
      view.shape[0] = 0;  // does not fit: an empty tensor, whose memory must not be touched
      count = 0;
      low = high = 0;
    }
    arena.allocate((high - low + 1) * size + 2 * kMargin);
    view.data = arena.bytes.data() + kMargin - low * size;
    for (int64_t i = 0; i < count; ++i) mark(view, arena, i, size);
  }

  void mark(const ls_tensor& view, Arena& arena, int64_t element, int64_t size) {
    int64_t offset = 0;
    for (int32_t dim = view.rank - 1; dim >= 0; --dim) {
      offset += element % view.shape[dim] * view.stride[dim];
      element /= view.shape[dim];
    }
    const int64_t at = static_cast<unsigned char*>(view.data) - arena.bytes.data() + offset * size;
    for (int64_t i = 0; i < size; ++i) arena.owned[static_cast<size_t>(at + i)] = 1;
  }

  template <typename Value>
  void fill(const ls_tensor& view, const Value& value) {
    if (view.data == nullptr || view.rank < 1 || view.rank > LS_MAX_RANK) return;
    Arena& arena = arenas_.back();
    const auto high = static_cast<unsigned char>(value(0));
    for (size_t i = 0; i < arena.bytes.size(); ++i) {
      // Small finite numbers in every floating dtype: exponents stay low.
      if (arena.owned[i] != 0)
        arena.bytes[i] = static_cast<unsigned char>((i % 2 == 1) ? 0x3c : high);
    }
  }

  // Must be refused whatever the operator: nothing here may be followed to memory.
  void spoil(ls_tensor& view) {
    switch (in_.below(6)) {
      case 0:
        view.rank = static_cast<int32_t>(in_.hostile() | 8);
        break;
      case 1:
        view.dtype = static_cast<int32_t>(in_.hostile() | 8);
        break;
      case 2:
        view.device_type = 1 + static_cast<int32_t>(in_.below(9));
        break;
      case 3:
        view.shape[0] = -1 - in_.below(100);
        break;
      case 4:
        view.stride[0] = INT64_MIN + in_.below(100);
        break;
      default:
        view = ls_tensor{};
        break;  // not given
    }
  }

  Source& in_;
  std::vector<Arena> arenas_;
  int32_t float_dtype_ = LS_F32;
};

}  // namespace linestate::fuzzing
