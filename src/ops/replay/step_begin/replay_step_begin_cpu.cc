#include "base/row_access.h"
#include "ops/replay/step_begin/replay_step_begin_kernels.h"

namespace linestate {

Status replay_step_begin_cpu(const ReplayStepParams& p, const ExecContext&) {
  auto* cursor = static_cast<int32_t*>(p.cursor.data);
  auto* pending = static_cast<int32_t*>(p.pending.data);
  auto* flush = static_cast<uint8_t*>(p.flush.data);
  const auto* forced = static_cast<const uint8_t*>(p.force_flush.data);
  for (int64_t n = 0; n < p.rows.slot.shape[0]; ++n) {
    const RowInfo row = read_decode_row(p.rows, n, p.cursor.shape[0]);
    int32_t before = 0;
    bool flushes = false;
    if (row.live && (row.valid > 0 || row.fresh)) {
      int32_t& c = cursor[row.slot * p.cursor.stride[0]];
      before = row.fresh ? 0 : c;
      const bool asked = p.force_flush.defined() && forced[n * p.force_flush.stride[0]] != 0;
      flushes = row.valid > 0 && (before + 1 == p.ring_length || asked);
      c = row.valid == 0 || flushes ? 0 : before + 1;
    }
    pending[n * p.pending.stride[0]] = before;
    flush[n * p.flush.stride[0]] = flushes ? 1 : 0;
  }
  return {};
}

}  // namespace linestate
