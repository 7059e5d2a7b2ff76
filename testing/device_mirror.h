// Host tensors on a GPU and back. The bytes that views span are copied as they lie, with everything
// between the elements, so strides, aliasing, alignment and canaries are those of the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "linestate/device_memory.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate::testing {

class DeviceMirror {
 public:
  DeviceMirror(Device device, void* stream) : device_(device), stream_(stream) {}

  /// Asks for a view's bytes. `writable`: an operator may change them.
  void add(const ConstTensorView& view, bool writable) {
    if (view.data == nullptr || view.num_elements() == 0) return;
    int64_t low = 0;
    int64_t high = 0;
    for (int32_t dim = 0; dim < view.rank; ++dim) {
      const auto d = static_cast<size_t>(dim);
      const int64_t reach = (view.shape[d] - 1) * view.stride[d];
      (reach < 0 ? low : high) += reach;
    }
    const int64_t size = dtype_bytes(view.dtype);
    const char* data = static_cast<const char*>(view.data);
    ranges_.push_back({data + low * size, data + (high + 1) * size, 0, writable});
  }

  /// Lays the ranges out in device memory, guard bytes between them, and copies them there.
  Status upload() {
    LINESTATE_RETURN_IF_ERROR(lay_out());
    image_.assign(static_cast<size_t>(bytes_), static_cast<char>(kGuard));
    for (const Range& range : ranges_) {
      std::memcpy(image_.data() + range.at, range.begin, range.size());
    }
    return restore();
  }

  /// The host's bytes once more.
  Status restore() {
    return copy_bytes({arena_->data(), device_}, {image_.data(), {}}, bytes_, stream_);
  }

  /// Bytes of which no value means anything, to show that nobody looks at them.
  Status scramble() { return fill_bytes({arena_->data(), device_}, 0x81, bytes_, stream_); }

  /// The view in device memory. REQUIRES: added and uploaded.
  template <typename Void>
  BasicTensorView<Void> map(const BasicTensorView<Void>& view) const {
    BasicTensorView<Void> mapped = view;
    if (!view.defined()) return mapped;
    mapped.device = device_;
    if (view.data == nullptr || view.num_elements() == 0) return mapped;
    const char* data = static_cast<const char*>(view.data);
    for (const Range& range : ranges_) {
      if (data < range.begin || data >= range.end) continue;
      mapped.data = static_cast<char*>(arena_->data()) + range.at + (data - range.begin);
    }
    return mapped;
  }

  /// What the device holds now.
  Result<std::vector<char>> download() {
    std::vector<char> bytes(image_.size());
    LINESTATE_RETURN_IF_ERROR(
        copy_bytes({bytes.data(), {}}, {arena_->data(), device_}, bytes_, stream_));
    return bytes;
  }

  /// What an operator must not have touched: inputs and the guards. Empty when it did not.
  std::string intact(const std::vector<char>& bytes) const {
    int64_t at = 0;
    for (const Range& range : ranges_) {
      for (; at < range.at; ++at) {
        if (bytes[static_cast<size_t>(at)] == static_cast<char>(kGuard)) continue;
        return "a byte outside all tensors changed, " + std::to_string(range.at - at) +
               " before one";
      }
      at = range.at + static_cast<int64_t>(range.size());
      if (range.writable) continue;
      if (std::memcmp(bytes.data() + range.at, range.begin, range.size()) == 0) continue;
      return "an input changed";
    }
    return {};
  }

  /// Device bytes back into the host's tensors.
  void write_back(const std::vector<char>& bytes) const {
    for (const Range& range : ranges_) {
      if (!range.writable) continue;
      std::memcpy(const_cast<char*>(range.begin), bytes.data() + range.at, range.size());
    }
  }

 private:
  static constexpr unsigned char kGuard = 0xa5;
  static constexpr int64_t kPitch = 256;
  static constexpr int64_t kMostBytes = int64_t{1} << 32;

  struct Range {
    const char* begin;
    const char* end;
    int64_t at;
    bool writable;
    size_t size() const { return static_cast<size_t>(end - begin); }
  };

  Status lay_out() {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    std::vector<Range> merged;
    for (const Range& range : ranges_) {
      if (!merged.empty() && range.begin < merged.back().end) {
        merged.back().end = std::max(merged.back().end, range.end);
        merged.back().writable |= range.writable;
      } else {
        merged.push_back(range);
      }
    }
    ranges_ = std::move(merged);
    bytes_ = kPitch;
    for (Range& range : ranges_) {
      range.at = bytes_ + static_cast<int64_t>(reinterpret_cast<uintptr_t>(range.begin) % kPitch);
      bytes_ = (range.at + static_cast<int64_t>(range.size()) + 2 * kPitch - 1) / kPitch * kPitch;
      if (bytes_ > kMostBytes) {
        return Status(StatusCode::kInvalidArgument, "mirror: expected at most 4 GiB");
      }
    }
    static DeviceMemory arena;  // grows; one device, one thread
    if (arena.bytes() < bytes_) {
      arena = DeviceMemory();
      Result<DeviceMemory> larger = DeviceMemory::allocate(device_, bytes_);
      LINESTATE_RETURN_IF_ERROR(larger.status());
      arena = std::move(larger).value();
    }
    arena_ = &arena;
    return {};
  }

  Device device_;
  void* stream_;
  std::vector<Range> ranges_;
  std::vector<char> image_;
  int64_t bytes_ = 0;
  DeviceMemory* arena_ = nullptr;
};

}  // namespace linestate::testing
