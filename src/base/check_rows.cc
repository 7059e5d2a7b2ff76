#include <array>
#include <cstdint>

#include "base/check.h"
#include "base/device_status.h"
#include "base/element.h"
#include "base/int_math.h"

namespace linestate {
namespace {

Status check_index_tensor(const char* name, const ConstTensorView& tensor, int64_t size,
                          const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_shape(name, tensor, {size}));
  LINESTATE_RETURN_IF_ERROR(check_dtype(name, tensor, {DType::kI32, DType::kI64}));
  return check_placement(name, tensor, context);
}

Status check_slots_and_lengths(const RowTensors& rows, int64_t num_slots, bool per_row_token,
                               const ExecContext& context) {
  const int64_t n = rows.slot.shape[0];
  for (int64_t i = 0; i < n; ++i) {
    if (load_index(rows.slot, i) >= num_slots) {
      raise_flag(context.status, DeviceFlag::kSlotOutOfRange, static_cast<int32_t>(i));
    }
    if (rows.start.defined() && load_index(rows.start, i) < 0) {
      return invalid_argument("rows.start: expected >= 0, got ", load_index(rows.start, i),
                              " at row ", i);
    }
    const int64_t tokens = per_row_token ? 1
                                         : load_index(rows.query_start_loc, i + 1) -
                                               load_index(rows.query_start_loc, i);
    if (rows.num_valid.defined()) {
      const int64_t valid = load_index(rows.num_valid, i);
      if (valid < 0 || valid > tokens) {
        return invalid_argument("rows.num_valid: expected 0 to ", tokens, ", got ", valid,
                                " at row ", i);
      }
    }
  }
  return check_distinct("rows.slot", rows.slot, num_slots);
}

}  // namespace

// Ids are looked at in windows of a bitmap on the stack, so nothing is
// allocated whatever P is; one window covers 65 536 slots.
Status check_distinct(const char* name, const ConstTensorView& slots, int64_t num_slots) {
  constexpr int64_t kWindow = 65536;
  const int64_t n = slots.shape[0];
  if (n < 2) return {};
  for (int64_t base = 0; base < num_slots; base += kWindow) {
    std::array<uint64_t, kWindow / 64> seen{};
    const int64_t end = min_i64(base + kWindow, num_slots);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t id = load_index(slots, i);
      if (id < base || id >= end) continue;
      uint64_t& word = seen[static_cast<size_t>((id - base) / 64)];
      const uint64_t bit = uint64_t{1} << ((id - base) % 64);
      if ((word & bit) != 0) {
        return invalid_argument(name, ": expected distinct live slots, got slot ", id,
                                " again at row ", i);
      }
      word |= bit;
    }
  }
  return {};
}

Status check_prefill_rows(const RowTensors& rows, int64_t num_tokens, int64_t num_slots,
                          const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_index_tensor("rows.slot", rows.slot, kAnySize, context));
  const int64_t n = rows.slot.shape[0];
  LINESTATE_RETURN_IF_ERROR(
      check_index_tensor("rows.query_start_loc", rows.query_start_loc, n + 1, context));
  LINESTATE_RETURN_IF_ERROR(check_index_tensor("rows.start", rows.start, n, context));
  if (rows.num_valid.defined()) {
    LINESTATE_RETURN_IF_ERROR(check_index_tensor("rows.num_valid", rows.num_valid, n, context));
  }
  if (context.device.type != DeviceType::kCpu) return {};

  if (load_index(rows.query_start_loc, 0) != 0) {
    return invalid_argument("rows.query_start_loc: expected to start at 0, got ",
                            load_index(rows.query_start_loc, 0));
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = load_index(rows.query_start_loc, i);
    const int64_t end = load_index(rows.query_start_loc, i + 1);
    if (end < begin || end > num_tokens) {
      return invalid_argument("rows.query_start_loc: expected monotone offsets up to ", num_tokens,
                              " tokens, got ", begin, " then ", end, " at row ", i);
    }
  }
  return check_slots_and_lengths(rows, num_slots, false, context);
}

Status check_decode_rows(const RowTensors& rows, int64_t num_tokens, int64_t num_slots,
                         const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_index_tensor("rows.slot", rows.slot, num_tokens, context));
  if (rows.start.defined()) {
    LINESTATE_RETURN_IF_ERROR(check_index_tensor("rows.start", rows.start, num_tokens, context));
  }
  if (rows.num_valid.defined()) {
    LINESTATE_RETURN_IF_ERROR(
        check_index_tensor("rows.num_valid", rows.num_valid, num_tokens, context));
  }
  if (context.device.type != DeviceType::kCpu) return {};
  return check_slots_and_lengths(rows, num_slots, true, context);
}

}  // namespace linestate
