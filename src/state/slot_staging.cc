#include "state/slot_staging.h"

#include <algorithm>
#include <array>

#include "base/int_math.h"
#include "base/message.h"
#include "cuda/matrix_copy.h"

namespace linestate {
namespace {

constexpr int64_t kAlign = 64;

int64_t plane_bytes(const SlotPlane& plane) {
  return plane.size[0] * plane.size[1] * plane.size[2] * dtype_bytes(plane.dtype);
}

// Dimensions from the one that steps least to the one that steps most.
std::array<size_t, 3> by_stride(const SlotPlane& plane) {
  std::array<size_t, 3> order{2, 1, 0};
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int64_t left = plane.size[a] > 1 ? plane.stride[a] : 0;
    const int64_t right = plane.size[b] > 1 ? plane.stride[b] : 0;
    return left < right;
  });
  return order;
}

// The same order of elements in memory without gaps, so that few copies move much.
SlotPlane packed(const SlotPlane& plane, char* data) {
  SlotPlane dense = plane;
  dense.data = data;
  int64_t step = 1;
  for (const size_t dim : by_stride(plane)) {
    dense.stride[dim] = step;
    step *= plane.size[dim];
  }
  return dense;
}

// One dimension of a copy, in bytes.
struct Span {
  int64_t size = 1;
  int64_t from = 0;
  int64_t to = 0;
};

// Three spans and the bytes of the innermost run, neighbours merged.
struct Runs {
  int64_t bytes = 0;
  std::array<Span, 3> span{};
};

Runs runs_of(const SlotPlane& from, const SlotPlane& to) {
  Runs runs;
  runs.bytes = dtype_bytes(from.dtype);
  size_t used = 0;
  for (const size_t dim : by_stride(from)) {
    if (from.size[dim] == 1) continue;
    const int64_t size = dtype_bytes(from.dtype);
    const Span next{from.size[dim], from.stride[dim] * size, to.stride[dim] * size};
    if (used == 0 && next.from == runs.bytes && next.to == runs.bytes) {
      runs.bytes *= next.size;
    } else {
      runs.span[used++] = next;
    }
  }
  return runs;
}

}  // namespace

int64_t slot_staging_bytes(const StatePool& pool) {
  if (pool.device().type == DeviceType::kCpu) return 0;
  int64_t bytes = 0;
  for (const TensorView& plane : pool.planes()) {
    bytes += round_up(plane.num_elements() / plane.shape[0] * dtype_bytes(plane.dtype), kAlign);
  }
  return bytes;
}

Result<StagedSlot> StagedSlot::create(const StatePool& pool, int32_t slot,
                                      const SlotStaging& staging) {
  const int64_t need = slot_staging_bytes(pool);
  if (static_cast<int64_t>(staging.buffer.size()) < need) {
    return invalid_argument("staging.buffer: expected at least ", need, " bytes for a slot on ",
                            device_name(pool.device()), ", got ", staging.buffer.size());
  }
  for (const TensorView& plane : pool.planes()) {
    for (int dim = 1; need > 0 && dim < plane.rank; ++dim) {
      if (plane.shape[dim] <= 1 || plane.stride[dim] >= 0) continue;
      return Status(
          StatusCode::kUnsupported,
          concat("pool: expected no negative stride within a slot, got ", describe(plane)));
    }
  }
  StagedSlot staged;
  staged.device_ = pool.device();
  staged.stream_ = staging.stream;
  auto* free = reinterpret_cast<char*>(staging.buffer.data());
  for (int64_t i = 0; i < pool.num_layers(); ++i) {
    staged.recurrent_.push_back(staged.place(pool.recurrent(i), slot, free));
    const TensorView window = pool.conv_window(i);
    staged.window_.push_back(window.defined() ? staged.place(window, slot, free) : Plane{});
  }
  return staged;
}

StagedSlot::Plane StagedSlot::place(const TensorView& plane, int32_t slot, char*& free) const {
  Plane made;
  made.pool = slot_plane(plane, slot);
  made.host = made.pool;
  if (device_.type == DeviceType::kCpu) return made;
  made.host = packed(made.pool, free);
  free += round_up(plane_bytes(made.pool), kAlign);
  return made;
}

Status StagedSlot::copy(const Plane& plane, bool to_host) const {
  if (plane.pool.data == nullptr) return {};
  const SlotPlane& from = to_host ? plane.pool : plane.host;
  const SlotPlane& to = to_host ? plane.host : plane.pool;
  const Device from_device = to_host ? device_ : Device{};
  const Device to_device = to_host ? Device{} : device_;
  const Runs runs = runs_of(from, to);
  const auto& [inner, middle, outer] = runs.span;
  for (int64_t i = 0; i < outer.size; ++i) {
    for (int64_t j = 0; j < middle.size; ++j) {
      const int64_t at_to = i * outer.to + j * middle.to;
      const int64_t at_from = i * outer.from + j * middle.from;
      LINESTATE_RETURN_IF_ERROR(
          copy_runs_async({static_cast<char*>(to.data) + at_to, to_device}, inner.to,
                          {static_cast<const char*>(from.data) + at_from, from_device}, inner.from,
                          runs.bytes, inner.size, stream_));
    }
  }
  return {};
}

Status StagedSlot::download() const {
  if (device_.type == DeviceType::kCpu) return {};
  for (size_t i = 0; i < recurrent_.size(); ++i) {
    LINESTATE_RETURN_IF_ERROR(copy(recurrent_[i], true));
    LINESTATE_RETURN_IF_ERROR(copy(window_[i], true));
  }
  return synchronize(device_, stream_);
}

Status StagedSlot::upload() const {
  if (device_.type == DeviceType::kCpu) return {};
  for (size_t i = 0; i < recurrent_.size(); ++i) {
    LINESTATE_RETURN_IF_ERROR(copy(recurrent_[i], false));
    LINESTATE_RETURN_IF_ERROR(copy(window_[i], false));
  }
  return {};
}

}  // namespace linestate
