// The prefix cache of a run: which request starts from which snapshot, which snapshots a batch
// takes, and the pool slots that hold them.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cli/replay/batch_builder.h"
#include "cli/replay/trace.h"
#include "linestate/forward_batch.h"
#include "linestate/prefix_cache.h"
#include "linestate/state_pool.h"

namespace linestate::cli {

class PrefixStore {
 public:
  /// Keeps at most `slots` >= 1 snapshots in slots of `pool`, which must outlive the store and have
  /// as many more than its requests need. Blocks are those of the trace.
  static Result<PrefixStore> create(StatePool& pool, int64_t slots);

  /// Tokens of a new request's input that a snapshot holds, 0 = none. Keeps the snapshot until the
  /// request's first extend row has been prepared.
  int64_t admit(const TraceRequest& request, int64_t index);
  /// Adds to `forward` the copies for rows that start from a snapshot, and a snapshot at the last
  /// block border that each extend row reaches. `forward` borrows from the store.
  Status add_work(const BuiltBatch& batch, ForwardBatch& forward);
  /// The batch is prepared: its copies are done.
  void prepared() { copying_.clear(); }
  /// The batch has run: keeps what was taken.
  Status collect(const BuiltBatch& batch, const ForwardMetadata& metadata);

  PrefixCacheStats stats() const { return cache_.stats(); }

 private:
  struct Wanted {
    int64_t request = 0;
    int64_t position = 0;
    int32_t slot = kPadSlot;
  };
  PrefixStore(StatePool& pool, PrefixCache cache, int64_t slots)
      : pool_(&pool), cache_(std::move(cache)), slots_(slots) {}
  Result<int32_t> take_slot();
  Status give_back(const std::vector<int32_t>& slots);

  StatePool* pool_;
  PrefixCache cache_;
  int64_t slots_ = 0;
  std::map<int64_t, std::vector<int64_t>> prompts_;  // of requests in prefill
  std::map<int64_t, PrefixCache::Lease> leases_;     // admitted, not yet prepared
  std::vector<PrefixCache::Lease> copying_;          // of the batch being prepared
  std::vector<Wanted> wanted_;                       // of the batch that runs
  std::vector<SnapshotRequest> requests_;            // the same for the batch
};

}  // namespace linestate::cli
