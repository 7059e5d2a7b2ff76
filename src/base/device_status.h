// Raising flags in the caller's DeviceStatus block from host code.
#pragma once

#include "linestate/exec_context.h"

namespace linestate {

/// Sets the flag and keeps the lowest row. No-op when `status` is null.
void raise_flag(DeviceStatus* status, DeviceFlag flag, int32_t row);
/// kStateOverflow with its slot and layer (of the first one raised).
void raise_overflow(DeviceStatus* status, int32_t row, int64_t slot, int32_t layer);
/// Raises kNonFinite for the first token of `out` [T, ...] that holds NaN or infinity, when the
/// context asks for it. The row reported is the token's index.
void raise_if_not_finite(const ExecContext& context, const ConstTensorView& out);

}  // namespace linestate
