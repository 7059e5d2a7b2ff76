#include "batch/batch_block.h"

#include "cpu/scratch.h"

namespace linestate {

BatchArrays lay_out_batch(const ForwardCapacity& capacity, int64_t work_ids, void* base) {
  Scratch scratch(base);
  BatchArrays made;
  made.slot = scratch.take<int32_t>(capacity.rows);
  made.query_start_loc = scratch.take<int64_t>(capacity.rows + 1);
  made.start = scratch.take<int64_t>(capacity.rows);
  made.num_valid = scratch.take<int32_t>(capacity.rows);
  made.segment_query_start_loc = scratch.take<int64_t>(capacity.rows + kMostSegments);
  made.parent = scratch.take<int32_t>(capacity.verify_tokens);
  made.snapshot_row = scratch.take<int32_t>(capacity.snapshots);
  made.snapshot_position = scratch.take<int64_t>(capacity.snapshots);
  made.snapshot_slot = scratch.take<int32_t>(capacity.snapshots);
  made.snapshot_source = scratch.take<int32_t>(capacity.snapshots);
  made.force_flush = scratch.take<uint8_t>(capacity.rows);
  made.work = scratch.take<int32_t>(work_ids);
  made.copied_bytes = scratch.bytes();
  made.taken = scratch.take<uint8_t>(capacity.snapshots);
  made.replay_pending = scratch.take<int32_t>(capacity.rows);
  made.replay_flush = scratch.take<uint8_t>(capacity.rows);
  made.bytes = scratch.bytes();
  return made;
}

}  // namespace linestate
