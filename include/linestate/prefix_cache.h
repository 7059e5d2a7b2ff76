// Which token prefixes have a saved state, and in which pool slot. A radix tree over token blocks
// that owns snapshots: a snapshot is (pool slot, token position), the whole memory of exactly
// `position` tokens. Bookkeeping on the host only; nothing here reads or writes state, and units
// are tokens everywhere.
//
// Ownership: insert() gives a slot to the cache, and each slot comes back exactly once: as a member
// of a `freed` list (evicted, or not kept), from erase(), clear() or take(). The caller then frees
// or retires it in its StatePool. Destroying a cache forgets its slots, so clear() it first.
//
// One request, copy on write:
//   PrefixCache::Lease hit = cache.match(prompt);       // a miss: slot kPadSlot, position 0
//   int32_t slot = *pool.allocate();
//   batch.rows = {{slot, RowKind::kExtend, hit.position(), prompt.size() - hit.position()}};
//   if (hit.held()) batch.pre.copy.push_back({hit.slot(), slot});
//   metadata.prepare(batch, pool, context);             // copies before the first operator
//   hit.release();                                      // the copy is in stream order
//   ... forward with a SnapshotPlan {row, position, snapshot_slot} ...
//   pool.mark_snapshot(snapshot_slot, position);        // only when it was taken
//   auto kept = cache.insert(prompt, position, snapshot_slot);
//   for (int32_t freed : kept->freed) pool.retire(freed, event);
// The lease keeps the snapshot from eviction until the copy is enqueued. Slots that come back may
// still be read by work in flight: retire them with an event of that stream.
//
// Thread-safety: one owner thread, leases included. Bad input is a Status, never undefined.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "linestate/rows.h"
#include "linestate/status.h"

namespace linestate {

struct PrefixCacheOptions {
  int64_t block_tokens =
      kChunkTokens;                // snapshots lie at multiples of it; itself one of the grid's
  int64_t byte_budget = 0;         // for all snapshots; below one snapshot: nothing is kept
  int64_t bytes_per_snapshot = 0;  // bytes_per_slot(pool.spec())
};

struct PrefixCacheStats {
  int64_t lookups = 0;     // match() calls
  int64_t hits = 0;        // with a lease
  int64_t hit_tokens = 0;  // tokens that need no recomputation, summed over the hits
  int64_t inserted = 0;    // snapshots taken in
  int64_t duplicates = 0;  // handed back: the prefix was there
  int64_t rejected = 0;    // handed back: no room, every snapshot leased
  int64_t evicted = 0;     // by budget or evict()
  int64_t entries = 0;     // snapshots now
  int64_t leased = 0;      // of which have at least one lease
  int64_t bytes = 0;       // entries * bytes_per_snapshot
};

class PrefixCache {
 public:
  /// One reader's hold on a snapshot: while it lives, slot() stays the cache's and is not evicted.
  /// May outlive the cache object. An empty lease holds nothing.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease() { release(); }

    bool held() const { return entry_ != nullptr; }
    int32_t slot() const { return slot_; }          // kPadSlot when empty
    int64_t position() const { return position_; }  // tokens in the snapshot, 0 when empty
    /// Ends the hold; a second call does nothing.
    void release();

   private:
    friend class PrefixCache;
    std::shared_ptr<void> cache_;
    void* entry_ = nullptr;
    int32_t slot_ = kPadSlot;
    int64_t position_ = 0;
  };

  enum class InsertOutcome : uint8_t {
    kInserted,   // the slot is the cache's
    kDuplicate,  // this prefix has a snapshot; the newcomer's slot is in `freed`
    kNoRoom,     // the budget is held by leases; the newcomer's slot is in `freed`
  };
  struct Inserted {
    InsertOutcome outcome = InsertOutcome::kInserted;
    std::vector<int32_t> freed;  // slots that are the caller's again
  };

  /// Errors: kInvalidArgument (block_tokens not a positive multiple of kChunkTokens, byte_budget
  /// negative, bytes_per_snapshot < 1).
  static Result<PrefixCache> create(const PrefixCacheOptions& options);

  PrefixCache(PrefixCache&&) noexcept;
  PrefixCache& operator=(PrefixCache&&) noexcept;
  ~PrefixCache();

  /// The longest snapshot of a proper prefix of `tokens`: position <= size - 1, so that at least
  /// one token is left to compute the next token's output from. A prompt of exactly 128 tokens with
  /// snapshots at 64 and 128 gets the one at 64. A hit becomes the most recently used.
  Lease match(std::span<const int64_t> tokens);
  /// True when tokens[0, position) has a snapshot. Counts as no lookup and no use.
  bool contains(std::span<const int64_t> tokens, int64_t position) const;

  /// Takes `slot` as the snapshot of tokens[0, position); tokens behind it are not looked at. It is
  /// the most recently used; when the budget is full, least recently used snapshots without a
  /// lease make room. A prefix that is there already is refreshed and keeps its old slot.
  /// Errors (the slot stays the caller's): kInvalidArgument (position not a positive multiple of
  /// block_tokens or beyond the tokens, slot negative or already the cache's).
  Result<Inserted> insert(std::span<const int64_t> tokens, int64_t position, int32_t slot);

  /// Up to `count` snapshots without a lease leave, least recently used first; their slots. None
  /// leave when there is no memory for the list.
  std::vector<int32_t> evict(int64_t count);

  /// Removes one snapshot and returns its slot.
  /// Errors: kNotFound, kFailedPrecondition (leased; the message says by how many).
  Result<int32_t> erase(std::span<const int64_t> tokens, int64_t position);
  /// Hands the leased snapshot itself over, without a copy: it leaves the cache, its slot is the
  /// caller's and the lease is empty. Right for a conversation that nobody else will continue.
  /// Errors (the lease keeps its hold): kFailedPrecondition (another lease holds it too),
  /// kInvalidArgument (empty lease, lease of another cache).
  Result<int32_t> take(Lease& lease);
  /// Removes every snapshot and returns all slots. Errors: kFailedPrecondition while any is leased.
  Result<std::vector<int32_t>> clear();

  PrefixCacheStats stats() const;

 private:
  struct Impl;
  explicit PrefixCache(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

/// "inserted", "duplicate", "no_room".
const char* insert_outcome_name(PrefixCache::InsertOutcome outcome);

}  // namespace linestate
