// One step of the scheduler as a batch: rows, tokens, and now and then the padding that engines put
// into fixed-size batches, so that a run exercises the whole row contract.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cli/replay/activations.h"
#include "cli/replay/scheduler.h"
#include "cli/replay/trace.h"
#include "linestate/rows.h"

namespace linestate::cli {

/// Padding tokens a batch can hold on top of its requests' tokens, and rows on top of theirs.
inline constexpr int64_t kMostPaddingTokens = 3;
inline constexpr int64_t kMostPaddingRows = 1;

/// A request's part of a batch: tokens [first_token, first_token + row.tokens).
struct BatchRow {
  int64_t request = 0;
  Row row;
  int64_t first_token = 0;
};

struct BuiltBatch {
  std::vector<Row> rows;           // as ForwardBatch takes them
  std::vector<BatchRow> requests;  // the live rows
  std::vector<TokenAt> tokens;     // [token_capacity]; padding tokens are zero-filled
  struct TokenRange {
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::vector<TokenRange> padding;  // tokens whose output must be zero
  int64_t token_capacity = 0;
};

/// Even steps put extend rows first, odd steps decode rows. Every 7th step has a padding row
/// between the two, another 7th has tokens behind the last row.
BuiltBatch build_batch(const StepPlan& plan, int64_t step, std::span<const TraceRequest> trace,
                       const std::function<int32_t(int64_t request)>& slot_of);

}  // namespace linestate::cli
