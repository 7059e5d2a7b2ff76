#include "base/element.h"
#include "base/run_copy.h"
#include "cpu/parallel_for.h"
#include "ops/state_ops/clear/state_clear_kernels.h"
#include "ops/state_ops/slot_walk.h"

namespace linestate {

Status state_clear_cpu(const StateClearParams& params, const ExecContext& context) {
  // A task owns one piece of every slot of a plane, so a repeated id is written by one thread.
  const auto planes = static_cast<int64_t>(params.planes.size());
  parallel_for(context, planes * SlotWalk::kPieces, [&](int64_t task, int) {
    const TensorView& plane = params.planes[static_cast<size_t>(task / SlotWalk::kPieces)];
    const SlotWalk walk(plane, plane);
    for (int64_t i = 0; i < params.slots.shape[0]; ++i) {
      const int64_t slot = load_index(params.slots, i);
      if (slot < 0 || slot >= plane.shape[0]) continue;
      const int64_t base = offset_of(plane, slot);
      walk.visit(task % SlotWalk::kPieces, [&](int64_t offset, int64_t, int64_t n) {
        zero_run({plane.data, plane.dtype, base + offset, walk.dst_stride()}, n);
      });
    }
  });
  return {};
}

}  // namespace linestate
