#include "linestate/prefix_cache.h"

#include <algorithm>
#include <list>
#include <unordered_map>
#include <utility>

#include "base/message.h"
#include "state/prefix_tree.h"

namespace linestate {
namespace {

struct Entry {
  int32_t slot = kPadSlot;
  int64_t position = 0;
  int64_t leases = 0;
  PrefixTree::Node* node = nullptr;
};
// Least recently used first. Addresses stay while entries move in the order.
using Entries = std::list<Entry>;

}  // namespace

struct PrefixCache::Impl {
  PrefixCacheOptions options;
  PrefixTree tree;
  Entries entries;
  std::unordered_map<int32_t, Entries::iterator> by_slot;
  PrefixCacheStats stats;  // entries and bytes are filled in by stats()

  explicit Impl(const PrefixCacheOptions& options_in)
      : options(options_in), tree(options_in.block_tokens) {}

  int64_t capacity() const { return options.byte_budget / options.bytes_per_snapshot; }
  int64_t count() const { return static_cast<int64_t>(entries.size()); }
  bool on_grid(int64_t position) const {
    return position > 0 && position % options.block_tokens == 0;
  }

  PrefixTree::Node* node_of(std::span<const int64_t> tokens, int64_t position) {
    if (!on_grid(position) || static_cast<uint64_t>(position) > tokens.size()) return nullptr;
    PrefixTree::Node* node = tree.find(tokens.first(static_cast<size_t>(position)));
    return node != nullptr && node->value != nullptr ? node : nullptr;
  }

  void use(const Entry& entry) { entries.splice(entries.end(), entries, by_slot.at(entry.slot)); }

  int32_t drop(Entries::iterator entry) noexcept {
    const int32_t slot = entry->slot;
    tree.remove(entry->node);
    by_slot.erase(slot);
    entries.erase(entry);
    return slot;
  }

  /// What evict(wanted) can do at most.
  int64_t evictable(int64_t wanted) const {
    return std::clamp<int64_t>(wanted, 0, count() - stats.leased);
  }

  /// REQUIRES: `freed` has room for evictable(wanted) more.
  void evict(int64_t wanted, std::vector<int32_t>& freed) noexcept {
    for (auto entry = entries.begin(); wanted > 0 && entry != entries.end();) {
      const auto candidate = entry++;
      if (candidate->leases > 0) continue;
      freed.push_back(drop(candidate));
      ++stats.evicted;
      --wanted;
    }
  }

  void add(std::span<const int64_t> tokens, int64_t position, int32_t slot);
};

// All or nothing: every part that needs memory is made before the first one is taken in.
void PrefixCache::Impl::add(std::span<const int64_t> tokens, int64_t position, int32_t slot) {
  Entries fresh;
  fresh.push_back({slot, position, 0, nullptr});
  by_slot.emplace(slot, fresh.begin());
  try {
    fresh.front().node = tree.insert(tokens.first(static_cast<size_t>(position)));
  } catch (...) {
    by_slot.erase(slot);
    throw;
  }
  fresh.front().node->value = &fresh.front();
  entries.splice(entries.end(), fresh);
}

PrefixCache::PrefixCache(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
PrefixCache::PrefixCache(PrefixCache&&) noexcept = default;
PrefixCache& PrefixCache::operator=(PrefixCache&&) noexcept = default;
PrefixCache::~PrefixCache() = default;

PrefixCache::Lease::Lease(Lease&& other) noexcept
    : cache_(std::move(other.cache_)),
      entry_(std::exchange(other.entry_, nullptr)),
      slot_(std::exchange(other.slot_, kPadSlot)),
      position_(std::exchange(other.position_, 0)) {}

PrefixCache::Lease& PrefixCache::Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  release();
  cache_ = std::move(other.cache_);
  entry_ = std::exchange(other.entry_, nullptr);
  slot_ = std::exchange(other.slot_, kPadSlot);
  position_ = std::exchange(other.position_, 0);
  return *this;
}

void PrefixCache::Lease::release() {
  if (entry_ == nullptr) return;
  if (--static_cast<Entry*>(entry_)->leases == 0) --static_cast<Impl*>(cache_.get())->stats.leased;
  entry_ = nullptr;
  slot_ = kPadSlot;
  position_ = 0;
  cache_.reset();
}

Result<PrefixCache> PrefixCache::create(const PrefixCacheOptions& options) try {
  if (options.block_tokens < 1 || options.block_tokens % kChunkTokens != 0) {
    return invalid_argument("options.block_tokens: expected a positive multiple of ", kChunkTokens,
                            ", got ", options.block_tokens);
  }
  if (options.byte_budget < 0) {
    return invalid_argument("options.byte_budget: expected >= 0, got ", options.byte_budget);
  }
  if (options.bytes_per_snapshot < 1) {
    return invalid_argument("options.bytes_per_snapshot: expected >= 1, got ",
                            options.bytes_per_snapshot);
  }
  return PrefixCache(std::make_shared<Impl>(options));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

PrefixCache::Lease PrefixCache::match(std::span<const int64_t> tokens) {
  Impl& impl = *impl_;
  ++impl.stats.lookups;
  Lease lease;
  if (tokens.empty()) return lease;
  PrefixTree::Node* node = impl.tree.longest(tokens.first(tokens.size() - 1));
  if (node == nullptr) return lease;
  auto* entry = static_cast<Entry*>(node->value);
  impl.use(*entry);
  ++impl.stats.hits;
  impl.stats.hit_tokens += entry->position;
  if (++entry->leases == 1) ++impl.stats.leased;
  lease.cache_ = impl_;
  lease.entry_ = entry;
  lease.slot_ = entry->slot;
  lease.position_ = entry->position;
  return lease;
}

bool PrefixCache::contains(std::span<const int64_t> tokens, int64_t position) const {
  return impl_->node_of(tokens, position) != nullptr;
}

Result<PrefixCache::Inserted> PrefixCache::insert(std::span<const int64_t> tokens, int64_t position,
                                                  int32_t slot) try {
  Impl& impl = *impl_;
  if (!impl.on_grid(position)) {
    return invalid_argument("position: expected a positive multiple of block_tokens = ",
                            impl.options.block_tokens, ", got ", position);
  }
  if (static_cast<uint64_t>(position) > tokens.size()) {
    return invalid_argument("position: expected at most the ", tokens.size(), " tokens, got ",
                            position);
  }
  if (slot < 0) return invalid_argument("slot: expected >= 0, got ", slot);
  if (impl.by_slot.count(slot) != 0) {
    return invalid_argument("slot: expected one that is not the cache's, got ", slot,
                            ", the snapshot at position ", impl.by_slot.at(slot)->position);
  }
  Inserted result;
  const int64_t evicted = impl.evictable(impl.count() + 1 - impl.capacity());
  result.freed.reserve(static_cast<size_t>(evicted) + 1);
  if (const PrefixTree::Node* known = impl.node_of(tokens, position)) {
    impl.use(*static_cast<const Entry*>(known->value));
    ++impl.stats.duplicates;
    result.outcome = InsertOutcome::kDuplicate;
    result.freed.push_back(slot);
    return result;
  }
  const bool fits = impl.count() - evicted + 1 <= impl.capacity();
  if (fits) impl.add(tokens, position, slot);  // the latest used: it is not evicted below
  impl.evict(evicted, result.freed);
  if (fits) {
    ++impl.stats.inserted;
  } else {
    ++impl.stats.rejected;
    result.outcome = InsertOutcome::kNoRoom;
    result.freed.push_back(slot);
  }
  return result;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

std::vector<int32_t> PrefixCache::evict(int64_t count) try {
  std::vector<int32_t> freed;
  freed.reserve(static_cast<size_t>(impl_->evictable(count)));
  impl_->evict(count, freed);
  return freed;
} catch (const std::bad_alloc&) {
  return {};
}

Result<int32_t> PrefixCache::erase(std::span<const int64_t> tokens, int64_t position) try {
  const PrefixTree::Node* node = impl_->node_of(tokens, position);
  if (node == nullptr) {
    return Status(StatusCode::kNotFound,
                  concat("prefix cache: no snapshot of these tokens at position ", position));
  }
  const auto& entry = *static_cast<const Entry*>(node->value);
  if (entry.leases > 0) {
    return Status(StatusCode::kFailedPrecondition,
                  concat("prefix cache: the snapshot at position ", position, " is held by ",
                         entry.leases, " leases"));
  }
  return impl_->drop(impl_->by_slot.at(entry.slot));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<int32_t> PrefixCache::take(Lease& lease) try {
  if (!lease.held()) return invalid_argument("lease: expected one that holds a snapshot");
  if (lease.cache_ != impl_) return invalid_argument("lease: expected one of this cache");
  const auto& entry = *static_cast<const Entry*>(lease.entry_);
  if (entry.leases > 1) {
    return Status(
        StatusCode::kFailedPrecondition,
        concat("lease: expected the only one of its snapshot, got one of ", entry.leases));
  }
  const int32_t slot = entry.slot;
  lease.release();
  return impl_->drop(impl_->by_slot.at(slot));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<std::vector<int32_t>> PrefixCache::clear() try {
  if (impl_->stats.leased > 0) {
    return Status(
        StatusCode::kFailedPrecondition,
        concat("prefix cache: expected no leases, ", impl_->stats.leased, " snapshots are held"));
  }
  std::vector<int32_t> freed;
  freed.reserve(impl_->entries.size());
  while (!impl_->entries.empty()) freed.push_back(impl_->drop(impl_->entries.begin()));
  return freed;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

PrefixCacheStats PrefixCache::stats() const {
  PrefixCacheStats stats = impl_->stats;
  stats.entries = impl_->count();
  stats.bytes = stats.entries * impl_->options.bytes_per_snapshot;
  return stats;
}

const char* insert_outcome_name(PrefixCache::InsertOutcome outcome) {
  switch (outcome) {
    case PrefixCache::InsertOutcome::kInserted:
      return "inserted";
    case PrefixCache::InsertOutcome::kDuplicate:
      return "duplicate";
    case PrefixCache::InsertOutcome::kNoRoom:
      return "no_room";
  }
  return "unknown";
}

}  // namespace linestate
