// Which slots a described call writes, read off its Params by the names of their members: every
// operator over rows has `rows` and one pooled tensor, or holds the Params of one that does.
#pragma once

#include "linestate/exec_context.h"
#include "linestate/status.h"
#ifdef LINESTATE_CUDA
#include "cuda/slot_check.h"
#endif

namespace linestate {

#ifdef LINESTATE_CUDA

template <typename Params>
WrittenSlots written_slots(const Params& params) {
  if constexpr (requires { params.kda; }) {
    return written_slots(params.kda);
  } else if constexpr (requires { params.lightning; }) {
    return written_slots(params.lightning);
  } else if constexpr (requires { params.conv; }) {
    return written_slots(params.conv);
  } else if constexpr (requires {
                         params.rows;
                         params.cursor;
                       }) {
    return {params.rows.slot, {}, params.cursor.shape[0]};
  } else if constexpr (requires {
                         params.rows;
                         params.snapshots;
                         params.state;
                       }) {
    return {params.rows.slot, params.snapshots.slot, params.state.shape[0]};
  } else if constexpr (requires {
                         params.rows;
                         params.snapshots;
                         params.window;
                       }) {
    return {params.rows.slot, params.snapshots.slot, params.window.shape[0]};
  } else if constexpr (requires {
                         params.dst_slots;
                         params.dst;
                       }) {
    return {params.dst_slots, {}, params.dst.empty() ? 0 : params.dst[0].shape[0]};
  } else {
    return {};
  }
}

/// Behind the checks of the host: flags what those cannot see. No launch without a status block.
template <typename Params>
Status check_slots_on_device(const Params& params, const ExecContext& context) {
  if (context.device.type != DeviceType::kCuda || context.status == nullptr) return {};
  return raise_if_slots_shared_cuda(context, written_slots(params));
}

#else

template <typename Params>
Status check_slots_on_device(const Params&, const ExecContext&) {
  return {};
}

#endif

}  // namespace linestate
