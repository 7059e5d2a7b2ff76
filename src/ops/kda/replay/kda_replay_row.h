// One row of a buffered decode as the kernels on the CPU read it.
#pragma once

#include <cstdint>

#include "base/row_access.h"
#include "linestate/ops/replay_ring.h"

namespace linestate {

struct KdaReplayRow {
  RowInfo row;
  int64_t pending = 0;  // records before this token
  bool flush = false;
  /// Nothing pending and the state is written anyway: this is plain decode.
  bool plain() const { return row.valid == 0 || (pending == 0 && flush); }
};

/// REQUIRES: the contract of kda_decode_replay was checked.
inline KdaReplayRow read_replay_row(const KdaReplayParams& p, int64_t n) {
  KdaReplayRow out;
  out.row = read_decode_row(p.kda.rows, n, p.kda.state.shape[0]);
  if (out.row.valid == 0) return out;
  out.pending = out.row.fresh ? 0 : load_index(p.pending, n);
  out.flush = static_cast<const uint8_t*>(p.flush.data)[offset_of(p.flush, n)] != 0;
  return out;
}

/// Record r of a slot's head in ring.keys or ring.values; gamma is found the same way without r.
struct RingRun {
  void* data;
  DType dtype;
  int64_t offset;
  int64_t stride;
};
inline RingRun ring_run(const TensorView& part, int64_t slot, int64_t j, int64_t r) {
  return {part.data, part.dtype, offset_of(part, slot, j, r), part.stride[3]};
}

}  // namespace linestate
