// Checks that the state operations share.
#pragma once

#include <cstdint>
#include <string>

#include "linestate/exec_context.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate {

/// Rank >= 1, sizes >= 0, on the context's device. `name` is "dst[2]".
Status check_plane(const std::string& name, const ConstTensorView& plane,
                   const ExecContext& context);

/// [n] i32 | i64 on the context's device; n = kAnySize accepts any.
Status check_slot_ids(const char* name, const ConstTensorView& slots, int64_t n,
                      const ExecContext& context);

}  // namespace linestate
