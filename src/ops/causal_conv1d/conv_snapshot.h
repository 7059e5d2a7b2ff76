// Windows kept on the way through a row.
#pragma once

#include <cstdint>

#include "base/row_access.h"
#include "linestate/ops/causal_conv1d.h"
#include "ops/common/conv_window.h"
#include "ops/common/snapshot_access.h"

namespace linestate {

/// Stores the windows that the plan wants of this row, for these channels. To be called before the
/// row's own window moves.
inline void snapshot_windows(const CausalConv1dParams& params, const RowInfo& row,
                             const RowSnapshots& snapshots, ChannelRange channels) {
  const TensorView& window = params.window;
  const auto store = [&](int64_t slot, int64_t inputs) {
    for (int64_t j = 0; j < window.shape[2] && !row.fresh; ++j) {
      const int64_t to = offset_of(window, slot, channels.begin, j);
      const int64_t from = offset_of(window, row.slot, channels.begin, j);
      copy_run({window.data, window.dtype, to, window.stride[1]},
               {window.data, window.dtype, from, window.stride[1]}, channels.size());
    }
    advance_window(window, slot, row.fresh, params.x, inputs, channels,
                   [&](int64_t i) { return row.token_begin + i; });
  };
  for (int64_t done = snapshots.next(0); done != RowSnapshots::kNone; done = snapshots.next(done)) {
    snapshots.at(done, [&](int64_t, int64_t slot) { store(slot, done); });
  }
}

}  // namespace linestate
