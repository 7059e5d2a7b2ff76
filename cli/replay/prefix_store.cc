#include "cli/replay/prefix_store.h"

#include <utility>

namespace linestate::cli {

static_assert(kTraceBlockTokens % kChunkTokens == 0);

Result<PrefixStore> PrefixStore::create(StatePool& pool, int64_t slots) {
  PrefixCacheOptions options;
  options.block_tokens = kTraceBlockTokens;
  options.bytes_per_snapshot = bytes_per_slot(pool.spec());
  options.byte_budget = slots * options.bytes_per_snapshot;
  Result<PrefixCache> cache = PrefixCache::create(options);
  if (!cache.ok()) return cache.status();
  return PrefixStore(pool, std::move(cache).value(), slots);
}

int64_t PrefixStore::admit(const TraceRequest& request, int64_t index) {
  std::vector<int64_t>& prompt = prompts_[index];
  for (int64_t position = 0; position < request.input_length; ++position) {
    prompt.push_back(static_cast<int64_t>(token_id(request, index, position)));
  }
  PrefixCache::Lease lease = cache_.match(prompt);
  const int64_t position = lease.position();
  if (lease.held()) leases_[index] = std::move(lease);
  return position;
}

Status PrefixStore::give_back(const std::vector<int32_t>& slots) {
  // Every kernel of the step has returned: nothing to wait for.
  for (const int32_t slot : slots) LINESTATE_RETURN_IF_ERROR(pool_->retire(slot, SlotEvent{}));
  return {};
}

Result<int32_t> PrefixStore::take_slot() {
  if (cache_.stats().entries + static_cast<int64_t>(wanted_.size()) >= slots_) {
    const std::vector<int32_t> evicted = cache_.evict(1);
    if (evicted.empty()) return kPadSlot;  // all leased or taken by this batch
    LINESTATE_RETURN_IF_ERROR(give_back(evicted));
  }
  return pool_->allocate();
}

Status PrefixStore::add_work(const BuiltBatch& batch, ForwardBatch& forward) {
  requests_.clear();
  size_t live = 0;
  for (size_t n = 0; n < batch.rows.size(); ++n) {
    if (batch.rows[n].kind == RowKind::kPad) continue;
    const BatchRow& row = batch.requests[live++];
    if (row.row.kind != RowKind::kExtend) continue;
    if (const auto lease = leases_.find(row.request); lease != leases_.end()) {
      forward.pre.copy.push_back({lease->second.slot(), row.row.slot});
      copying_.push_back(std::move(lease->second));
      leases_.erase(lease);
    }
  }
  live = 0;
  for (size_t n = 0; n < batch.rows.size(); ++n) {
    if (batch.rows[n].kind == RowKind::kPad) continue;
    const BatchRow& row = batch.requests[live++];
    if (row.row.kind != RowKind::kExtend) continue;
    const auto prompt = prompts_.find(row.request);
    const int64_t end = row.row.start + row.row.tokens;
    const int64_t border = end / kTraceBlockTokens * kTraceBlockTokens;
    if (border > row.row.start && !cache_.contains(prompt->second, border)) {
      Result<int32_t> slot = take_slot();
      if (!slot.ok()) return slot.status();
      if (*slot != kPadSlot) {
        wanted_.push_back({row.request, border, *slot});
        requests_.push_back({static_cast<int32_t>(n), border, *slot});
      }
    }
  }
  forward.snapshots = requests_;
  return {};
}

Status PrefixStore::collect(const BuiltBatch& batch, const ForwardMetadata& metadata) {
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const Wanted& want = wanted_[i];
    if (!metadata.snapshot_taken(i)) {
      LINESTATE_RETURN_IF_ERROR(give_back({want.slot}));
      continue;
    }
    LINESTATE_RETURN_IF_ERROR(pool_->mark_snapshot(want.slot, want.position));
    Result<PrefixCache::Inserted> inserted =
        cache_.insert(prompts_[want.request], want.position, want.slot);
    if (!inserted.ok()) return inserted.status();
    LINESTATE_RETURN_IF_ERROR(give_back(inserted->freed));
  }
  wanted_.clear();
  for (const BatchRow& row : batch.requests) {
    const auto prompt = prompts_.find(row.request);
    if (prompt == prompts_.end() || row.row.kind != RowKind::kExtend) continue;
    const int64_t end = row.row.start + row.row.tokens;
    if (end == static_cast<int64_t>(prompt->second.size())) prompts_.erase(prompt);
  }
  return {};
}

}  // namespace linestate::cli
