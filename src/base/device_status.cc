#include "base/device_status.h"

#include <bit>
#include <cmath>

#include "base/element.h"
#include "base/message.h"

namespace linestate {

void DeviceStatus::reset() {
  flags.store(0, std::memory_order_relaxed);
  for (auto& row : first_row) row.store(-1, std::memory_order_relaxed);
  overflow_slot.store(-1, std::memory_order_relaxed);
  overflow_layer.store(-1, std::memory_order_relaxed);
}

int32_t DeviceStatus::row_of(DeviceFlag flag) const {
  const int index = std::countr_zero(static_cast<uint32_t>(flag));
  return first_row[index].load(std::memory_order_relaxed);
}

std::string DeviceStatus::describe() const {
  static constexpr const char* kTexts[kDeviceFlagCount] = {
      "slot out of range, row treated as padding",
      "bad offsets or num_valid, row skipped",
      "bad parent in a verify tree",
      "accepted_node out of range, row not committed",
      "duplicate live slot",
      "snapshot position not reached",
      "state overflow in the pool's dtype",
      "non-finite output",
  };
  std::string text;
  for (int i = 0; i < kDeviceFlagCount; ++i) {
    if (!raised(static_cast<DeviceFlag>(1u << i))) continue;
    text += concat(kTexts[i], ", first row ", first_row[i].load(std::memory_order_relaxed));
    if ((1u << i) == static_cast<uint32_t>(DeviceFlag::kStateOverflow)) {
      text += concat(", slot ", overflow_slot.load(std::memory_order_relaxed), ", layer ",
                     overflow_layer.load(std::memory_order_relaxed));
    }
    text += '\n';
  }
  return text;
}

void raise_flag(DeviceStatus* status, DeviceFlag flag, int32_t row) {
  if (status == nullptr) return;
  const int index = std::countr_zero(static_cast<uint32_t>(flag));
  std::atomic<int32_t>& first = status->first_row[index];
  int32_t seen = first.load(std::memory_order_relaxed);
  while ((seen < 0 || row < seen) &&
         !first.compare_exchange_weak(seen, row, std::memory_order_relaxed)) {
  }
  status->flags.fetch_or(static_cast<uint32_t>(flag), std::memory_order_relaxed);
}

void raise_overflow(DeviceStatus* status, int32_t row, int64_t slot, int32_t layer) {
  if (status == nullptr) return;
  int32_t none = -1;
  if (status->overflow_slot.compare_exchange_strong(none, static_cast<int32_t>(slot),
                                                    std::memory_order_relaxed)) {
    status->overflow_layer.store(layer, std::memory_order_relaxed);
  }
  raise_flag(status, DeviceFlag::kStateOverflow, row);
}

namespace {

bool finite(const ConstTensorView& view, int64_t offset, int dim) {
  // The second bound is for the compiler: g++ 13 unrolls the recursion past the last dimension.
  if (dim == view.rank || dim == kMaxRank) {
    return std::isfinite(load_f32(view.data, view.dtype, offset));
  }
  for (int64_t i = 0; i < view.shape[dim]; ++i) {
    if (!finite(view, offset + i * view.stride[dim], dim + 1)) return false;
  }
  return true;
}

}  // namespace

void raise_if_not_finite(const ExecContext& context, const ConstTensorView& out) {
  if (!context.check_finite || context.status == nullptr) return;
  if (context.device.type != DeviceType::kCpu) return;
  for (int64_t t = 0; t < out.shape[0]; ++t) {
    if (finite(out, t * out.stride[0], 1)) continue;
    raise_flag(context.status, DeviceFlag::kNonFinite, static_cast<int32_t>(t));
    return;
  }
}

}  // namespace linestate
