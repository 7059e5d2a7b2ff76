// Draft parents and snapshot requests of a ForwardBatch, checked on the host.
#pragma once

#include <cstdint>

#include "linestate/forward_batch.h"
#include "linestate/status.h"

namespace linestate {

/// Tokens of the batch's verify rows.
int64_t count_verify_tokens(const ForwardBatch& batch);

/// parent has one entry a verify token, -1 for node 0 and -1 <= parent[i] < i behind it; no verify
/// row is longer than kMaxVerifyNodes.
Status check_drafts(const ForwardBatch& batch, const ForwardCapacity& capacity);

/// Rows exist and are no padding, positions lie inside their rows, destinations are distinct and
/// no row's slot.
Status check_snapshots(const ForwardBatch& batch, const ForwardCapacity& capacity,
                       int64_t num_slots);

}  // namespace linestate
