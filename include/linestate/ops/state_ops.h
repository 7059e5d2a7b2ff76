// Moving state between slots. A "plane" is one pooled tensor: the recurrent state or the
// convolution window of one layer, [P, ...] with any slot stride. All planes of all layers move
// in one call, so state and windows can never drift apart.
//
// Padding rule: an id outside [0, P) reads nothing, writes nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "linestate/exec_context.h"
#include "linestate/kernel_info.h"
#include "linestate/status.h"

namespace linestate {

struct StateClearParams {
  std::span<const TensorView> planes;  // each [P, ...], f32 | bf16 | f16
  ConstTensorView slots;               // [n] i32 | i64; repeats are harmless
};

/// Fills the slots with zero. Errors: kInvalidArgument (rank, dtype, planes of different P).
Status state_clear(const StateClearParams& params, const ExecContext& context,
                   std::string_view kernel = kAutoKernel);
KernelChoice explain_state_clear(const StateClearParams& params, const ExecContext& context,
                                 std::string_view kernel = kAutoKernel);

struct StateCopyParams {
  std::span<const ConstTensorView> src;  // each [P_src, ...]
  std::span<const TensorView> dst;       // each [P_dst, ...], same inner shape; another dtype only
                                         // among f32 | bf16 | f16
  ConstTensorView src_slots;             // [n] i32 | i64
  ConstTensorView dst_slots;             // [n] i32 | i64; live ids distinct
};

/// dst[dst_slots[i]] = src[src_slots[i]] for every i, value by value: equal dtypes copy bits,
/// others convert (round to nearest even). A transposed view on either side converts the layout.
/// src and dst may be the same pool (slot -> slot, gather, scatter) as long as no live slot is both
/// a source and a destination; i is skipped when either id is padding. A finite value that does not
/// fit dst's dtype becomes infinite and raises kStateOverflow with row i, the destination slot and
/// the plane's index as overflow_layer.
/// Errors: kInvalidArgument for the above; duplicate or overlapping live ids are refused.
Status state_copy(const StateCopyParams& params, const ExecContext& context,
                  std::string_view kernel = kAutoKernel);
KernelChoice explain_state_copy(const StateCopyParams& params, const ExecContext& context,
                                std::string_view kernel = kAutoKernel);

}  // namespace linestate
