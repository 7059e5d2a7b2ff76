#include "base/device_status.h"
#include "base/element.h"
#include "base/run_copy.h"
#include "cpu/parallel_for.h"
#include "ops/state_ops/copy/state_copy_kernels.h"
#include "ops/state_ops/slot_walk.h"

namespace linestate {

Status state_copy_cpu(const StateCopyParams& params, const ExecContext& context) {
  const auto planes = static_cast<int64_t>(params.src.size());
  parallel_for(context, planes * SlotWalk::kPieces, [&](int64_t task, int) {
    const int64_t index = task / SlotWalk::kPieces;
    const ConstTensorView& src = params.src[static_cast<size_t>(index)];
    const TensorView& dst = params.dst[static_cast<size_t>(index)];
    const SlotWalk walk(dst, src);
    for (int64_t i = 0; i < params.src_slots.shape[0]; ++i) {
      const int64_t from = load_index(params.src_slots, i);
      const int64_t to = load_index(params.dst_slots, i);
      if (from < 0 || from >= src.shape[0] || to < 0 || to >= dst.shape[0]) continue;
      const int64_t src_base = offset_of(src, from);
      const int64_t dst_base = offset_of(dst, to);
      bool fits = true;
      walk.visit(task % SlotWalk::kPieces, [&](int64_t dst_at, int64_t src_at, int64_t n) {
        fits &= copy_run({dst.data, dst.dtype, dst_base + dst_at, walk.dst_stride()},
                         {src.data, src.dtype, src_base + src_at, walk.src_stride()}, n);
      });
      if (fits) continue;
      raise_overflow(context.status, static_cast<int32_t>(i), to, static_cast<int32_t>(index));
    }
  });
  return {};
}

}  // namespace linestate
