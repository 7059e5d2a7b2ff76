// The tensors of a ForwardMetadata as one block of memory, so that one copy refreshes them all and
// their addresses never change. The same offsets serve the host's staging and the device's block.
#pragma once

#include <cstdint>

#include "linestate/forward_batch.h"
#include "linestate/tensor.h"

namespace linestate {

/// Arrays of one block. On a device only their addresses mean anything to the host.
struct BatchArrays {
  int32_t* slot = nullptr;                     // [rows]
  int64_t* query_start_loc = nullptr;          // [rows + 1]
  int64_t* start = nullptr;                    // [rows]
  int32_t* num_valid = nullptr;                // [rows]
  int64_t* segment_query_start_loc = nullptr;  // [rows + kMostSegments]
  int32_t* parent = nullptr;                   // [verify tokens]
  int32_t* snapshot_row = nullptr;             // [snapshots], counted from the segment's first row
  int64_t* snapshot_position = nullptr;        // [snapshots]
  int32_t* snapshot_slot = nullptr;            // [snapshots]
  int32_t* snapshot_source = nullptr;          // [snapshots]
  uint8_t* force_flush = nullptr;              // [rows]
  // Slot work of this batch, behind each other.
  int32_t* work = nullptr;  // [work_ids]
  int64_t copied_bytes = 0;

  // Written by operators, never copied.
  uint8_t* taken = nullptr;           // [snapshots]
  int32_t* replay_pending = nullptr;  // [rows]
  uint8_t* replay_flush = nullptr;    // [rows]
  int64_t bytes = 0;
};

inline constexpr int64_t kMostSegments = 4;  // one a kind

/// A null base counts the bytes.
BatchArrays lay_out_batch(const ForwardCapacity& capacity, int64_t work_ids, void* base);

}  // namespace linestate
