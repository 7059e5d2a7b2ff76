// What verify keeps of a row's nodes.
#pragma once

#include <cstdint>

#include "base/row_access.h"
#include "base/run_copy.h"
#include "linestate/ops/lightning_verify.h"

namespace linestate {

/// The bits of k and v of the row's valid nodes, one head.
inline void record_nodes(const LightningVerifyParams& params, const RowInfo& row, int64_t head) {
  const auto copy = [&](const TensorView& to, const ConstTensorView& from) {
    for (int64_t t = row.token_begin; t < row.token_begin + row.valid; ++t) {
      copy_run({to.data, to.dtype, offset_of(to, t, head), to.stride[2]},
               {from.data, from.dtype, offset_of(from, t, head), from.stride[2]}, to.shape[2]);
    }
  };
  copy(params.record.k, params.lightning.k);
  copy(params.record.v, params.lightning.v);
}

}  // namespace linestate
