// A checksum over what a model would sample from: the outputs of every layer from a request's last
// input token on. It depends on the outputs alone, not on batches, steps or their order, so runs
// that must agree bit for bit are compared by one number.
#pragma once

#include <cstdint>
#include <span>

#include "cli/replay/batch_builder.h"
#include "cli/replay/trace.h"
#include "linestate/tensor.h"

namespace linestate::cli {

class OutputSum {
 public:
  /// Adds what the batch's requests advance by. `out` is the contiguous [tokens, HV, V] of a layer.
  void add(const BuiltBatch& batch, std::span<const TraceRequest> trace, int64_t layer,
           const ConstTensorView& out);
  uint64_t value() const { return sum_; }

 private:
  uint64_t sum_ = 0;
};

}  // namespace linestate::cli
