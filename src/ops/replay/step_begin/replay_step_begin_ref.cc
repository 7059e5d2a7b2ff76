// The protocol of include/linestate/ops/replay_ring.h for one row after the other.
#include "base/row_access.h"
#include "ops/replay/step_begin/replay_step_begin_kernels.h"

namespace linestate {
namespace {

struct Step {
  int64_t pending = 0;
  bool flush = false;
};

bool forced(const ReplayStepParams& p, int64_t n) {
  if (!p.force_flush.defined()) return false;
  return static_cast<const uint8_t*>(p.force_flush.data)[offset_of(p.force_flush, n)] != 0;
}

// A token joins the pending records, unless it is the R-th or the row must flush.
Step begin_token(const ReplayStepParams& p, int64_t n, const RowInfo& row) {
  Step step;
  step.pending = row.fresh ? 0 : load_index(p.cursor, row.slot);
  step.flush = step.pending == p.ring_length - 1 || forced(p, n);
  return step;
}

}  // namespace

Status replay_step_begin_ref(const ReplayStepParams& p, const ExecContext&) {
  for (int64_t n = 0; n < p.rows.slot.shape[0]; ++n) {
    const RowInfo row = read_decode_row(p.rows, n, p.cursor.shape[0]);
    const auto set_cursor = [&](int64_t c) {
      static_cast<int32_t*>(p.cursor.data)[offset_of(p.cursor, row.slot)] = static_cast<int32_t>(c);
    };
    Step step;
    if (row.valid > 0) {
      step = begin_token(p, n, row);
      set_cursor(step.flush ? 0 : step.pending + 1);
    } else if (row.live && row.fresh) {
      set_cursor(0);  // its state becomes zero, and so does its ring
    }
    static_cast<int32_t*>(p.pending.data)[offset_of(p.pending, n)] =
        static_cast<int32_t>(step.pending);
    static_cast<uint8_t*>(p.flush.data)[offset_of(p.flush, n)] = step.flush ? 1 : 0;
  }
  return {};
}

}  // namespace linestate
