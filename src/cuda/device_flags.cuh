// Raising flags of a DeviceStatus from kernels. The block lies in device memory; its atomics are
// plain 32-bit words there, updated with the device's atomic operations.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "linestate/exec_context.h"

namespace linestate {

static_assert(sizeof(DeviceStatus) == 64 && kDeviceFlagCount == 8,
              "flags, first_row[8], overflow_slot, overflow_layer are words 0, 1-8, 9, 10");

__device__ inline void raise_flag(DeviceStatus* status, DeviceFlag flag, int64_t row) {
  if (status == nullptr) return;
  auto* words = reinterpret_cast<unsigned*>(status);
  const auto bit = static_cast<unsigned>(flag);
  // -1 is the largest unsigned number, so "none yet" loses against every row.
  atomicMin(words + __ffs(static_cast<int>(bit)), static_cast<unsigned>(row));
  atomicOr(words, bit);
}

__device__ inline void raise_overflow(DeviceStatus* status, int64_t row, int64_t slot,
                                      int32_t layer) {
  if (status == nullptr) return;
  auto* words = reinterpret_cast<unsigned*>(status);
  const unsigned none = 0xffffffffu;
  if (atomicCAS(words + 9, none, static_cast<unsigned>(slot)) == none) {
    atomicExch(words + 10, static_cast<unsigned>(layer));
  }
  raise_flag(status, DeviceFlag::kStateOverflow, row);
}

}  // namespace linestate
