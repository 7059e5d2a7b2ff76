// A checked ForwardBatch written out as the tensors that operators read.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/batch_block.h"
#include "linestate/forward_batch.h"

namespace linestate {

/// What the host knows of a prepared batch.
struct FilledBatch {
  int64_t num_rows = 0;
  int64_t num_tokens = 0;
  int64_t token_capacity = 0;
  int64_t num_prefills = 0;
  int64_t num_decodes = 0;
  int64_t num_prefill_tokens = 0;
  int64_t num_parents = 0;
  std::vector<Segment> segments;
  RowTensors rows;
  std::vector<size_t> snapshot_at;  // place of the batch's i-th request among all entries
  std::vector<uint8_t> taken;       // by entry: certain before anything runs
};

/// Where the values go, and where operators will find them: the same arrays of another block.
struct BatchPlaces {
  BatchArrays host;
  BatchArrays views;
  Device device{};
  int64_t parent_room = 0;  // ForwardCapacity::verify_tokens
};

/// REQUIRES: check_batch passed. Refills `out`, whose vectors keep their memory.
void fill_batch(const ForwardBatch& batch, int64_t num_slots, const BatchPlaces& places,
                FilledBatch& out);

}  // namespace linestate
