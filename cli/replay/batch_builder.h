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
#include "linestate/forward_batch.h"

namespace linestate::cli {

/// Padding tokens a batch can hold on top of its requests' tokens, and rows on top of theirs.
inline constexpr int64_t kMostPaddingTokens = 3;
inline constexpr int64_t kMostPaddingRows = 1;

/// A request's part of a batch: tokens [first_token, first_token + row.tokens).
struct BatchRow {
  int64_t request = 0;
  Row row;
  int64_t first_token = 0;
  std::vector<int64_t> accepted;  // verify rows: the accepted nodes, a path from the root

  /// Tokens that the request advances by.
  int64_t advance() const {
    return row.kind == RowKind::kVerify ? static_cast<int64_t>(accepted.size()) : row.tokens;
  }
  /// Batch token that is the request's token at row.start + i. REQUIRES: i < advance().
  int64_t token_at(int64_t i) const {
    return first_token + (row.kind == RowKind::kVerify ? accepted[static_cast<size_t>(i)] : i);
  }
};

struct BuiltBatch {
  std::vector<Row> rows;           // as ForwardBatch takes them
  std::vector<BatchRow> requests;  // the live rows
  std::vector<int32_t> parent;     // of the verify rows' tokens, in batch order
  std::vector<int32_t> accepted;   // by verify row: the last accepted node
  std::vector<TokenAt> tokens;     // [token_capacity]; padding tokens are zero-filled
  struct TokenRange {
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::vector<TokenRange> padding;  // tokens whose output must be zero
  int64_t token_capacity = 0;
  BatchShape shape;  // of a step that replays a graph
};

/// The order of the kinds changes from step to step. Every 7th step has a padding row behind the
/// first kind, another 7th has tokens behind the last row.
BuiltBatch build_batch(const StepPlan& plan, int64_t step, std::span<const TraceRequest> trace,
                       const std::function<int32_t(int64_t request)>& slot_of);

/// The shape of a step that a captured graph can serve: rows of either kind up to the next power of
/// two, at most `most_rows`. Undefined for a step that prefills.
BatchShape graph_shape(const StepPlan& plan, int64_t most_rows, int64_t draft_length);

/// The step in the fixed layout of `shape`, which holds it, without further padding.
BuiltBatch build_shaped_batch(const StepPlan& plan, const BatchShape& shape,
                              std::span<const TraceRequest> trace,
                              const std::function<int32_t(int64_t request)>& slot_of);

}  // namespace linestate::cli
