// The way of a fold through layers, slots and heads. No maths: the caller folds a head.
#pragma once

#include <cstdint>

#include "base/device_status.h"
#include "base/element.h"
#include "cpu/parallel_for.h"
#include "linestate/ops/replay_ring.h"

namespace linestate {

/// One head of one slot with pending records. fold_head returns false when a finite value became
/// infinite in the pool's dtype.
struct FoldHead {
  const ReplayFoldLayer& layer;
  int64_t slot;
  int64_t head;
  int64_t pending;
};

template <typename FoldHeadBody>
void fold_slots(const ReplayFoldParams& p, const ExecContext& context,
                const FoldHeadBody& fold_head) {
  const int64_t slots = p.slots.shape[0];
  const int64_t P = p.cursor.shape[0];
  const auto live = [&](int64_t slot) { return slot >= 0 && slot < P; };
  for (const ReplayFoldLayer& layer : p.layers) {
    const int64_t heads = layer.state.shape[1];
    parallel_for(context, slots * heads, [&](int64_t task, int) {
      const int64_t row = task / heads;
      const int64_t slot = load_index(p.slots, row);
      const int64_t pending = live(slot) ? load_index(p.cursor, slot) : 0;
      if (pending == 0 || fold_head(FoldHead{layer, slot, task % heads, pending})) return;
      raise_overflow(context.status, static_cast<int32_t>(row), slot, layer.layer);
    });
  }
  for (int64_t row = 0; row < slots; ++row) {
    const int64_t slot = load_index(p.slots, row);
    if (live(slot)) static_cast<int32_t*>(p.cursor.data)[offset_of(p.cursor, slot)] = 0;
  }
}

}  // namespace linestate
