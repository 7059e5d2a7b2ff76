// A state pool, a prefix cache and the deferred copies of a batch, driven by a stream of choices
// and compared after every step with a model that knows no trees: a map from block names to slots,
// and one owner per slot.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "linestate/forward_batch.h"
#include "linestate/prefix_cache.h"
#include "linestate/state_pool.h"

namespace linestate {

/// `Choices` has integer(low, high), both included.
template <typename Choices>
class PrefixCacheCase {
 public:
  PrefixCacheCase(Choices& choices, int64_t num_slots, int64_t capacity)
      : choices_(choices),
        pool_(*StatePool::create(spec(), num_slots)),
        metadata_(*ForwardMetadata::create(4)),
        cache_(*PrefixCache::create(
            {kChunkTokens, capacity * bytes_per_slot(spec()) + 7, bytes_per_slot(spec())})),
        capacity_(capacity),
        owner_(static_cast<size_t>(num_slots), Owner::kPool),
        tag_(static_cast<size_t>(num_slots), 0.0f) {}

  /// One operation, checked. Empty, or what differed from the model.
  std::string step();
  /// Every slot's owner, every count, every snapshot.
  std::string check_everything();
  /// Gives back whatever is held; afterwards the pool must be whole again.
  std::string finish();

 private:
  enum class Owner : uint8_t { kPool, kRequest, kCache, kFlight };
  // A block name stands for 64 tokens; names that differ only late in the block come first.
  using Blocks = std::string;
  struct Snapshot {
    int32_t slot;
    int64_t used;
    int64_t leases;
  };
  struct Held {
    PrefixCache::Lease lease;
    Blocks key;
  };

  static PoolSpec spec() {
    PoolSpec spec;
    spec.layers.push_back({0, StateLayout::kVK, 1, 16, 16, 0, 0});
    return spec;
  }

  int64_t pick(int64_t low, int64_t high) { return choices_.integer(low, high); }
  std::string fail(const std::string& what) { return concat("step ", steps_, ": ", what); }
  float& first_element(int32_t slot) {
    const TensorView plane = pool_.recurrent(0);
    return static_cast<float*>(plane.data)[slot * plane.stride[0]];
  }

  Blocks random_blocks(int64_t most) {
    Blocks blocks;
    for (int64_t n = pick(0, most); n > 0; --n) {
      blocks.push_back(static_cast<char>('a' + std::min(pick(0, 3), pick(0, 3))));
    }
    return blocks;
  }

  // The blocks' tokens and `tail` more.
  std::vector<int64_t> tokens_of(const Blocks& blocks, int64_t tail) {
    std::vector<int64_t> tokens;
    tokens.reserve(8 * kChunkTokens);
    for (char name : blocks) {
      const int64_t differs_at = name == 'b' ? kChunkTokens - 1 : name == 'c' ? 31 : 0;
      for (int64_t i = 0; i < kChunkTokens; ++i) {
        tokens.push_back(name != 'a' && i == differs_at ? INT64_MIN + name : i * i);
      }
    }
    for (int64_t i = 0; i < tail; ++i) tokens.push_back(i * i);  // as an 'a' block that ends early
    return tokens;
  }

  static int64_t position_of(const Blocks& key) {
    return static_cast<int64_t>(key.size()) * kChunkTokens;
  }

  // Longest stored proper prefix by trying every length.
  const std::pair<const Blocks, Snapshot>* expected_match(Blocks blocks, int64_t tail) {
    if (tail >= kChunkTokens) {  // the tail's first 64 tokens are an 'a' block
      blocks.push_back('a');
      tail -= kChunkTokens;
    }
    for (auto n = static_cast<int64_t>(blocks.size()); n > 0; --n) {
      if (n * kChunkTokens >= position_of(blocks) + tail) continue;
      const auto found = model_.find(blocks.substr(0, static_cast<size_t>(n)));
      if (found != model_.end()) return &*found;
    }
    return nullptr;
  }

  std::string match(const Blocks& blocks, int64_t tail, Held& held);
  std::string request();
  std::string copy_on_write(const Held& held, int32_t slot);
  std::string keep_snapshot(const Blocks& key, int32_t slot);
  std::string expect_evictions(int64_t count, std::vector<int32_t>::const_iterator& freed,
                               std::vector<int32_t>::const_iterator end);
  std::string move(int32_t slot, Owner from, Owner to);
  std::string give_back(int32_t slot, Owner from);
  std::string allocate(int32_t& slot);
  std::string release_one();
  std::string evict();
  std::string erase();
  std::string take();
  std::string clear();
  std::string bad_input();
  void land_one_flight();
  void hold(Held held);

  Choices& choices_;
  StatePool pool_;
  ForwardMetadata metadata_;
  PrefixCache cache_;
  int64_t capacity_;
  std::vector<Owner> owner_;
  std::vector<float> tag_;  // what a slot's memory must hold
  std::map<Blocks, Snapshot> model_;
  std::list<Held> held_;
  struct Flight {
    int32_t slot;
    bool landed;
  };
  std::list<Flight> flights_;
  int64_t steps_ = 0;
  int64_t clock_ = 0;
  PrefixCacheStats stats_;
};

#define LINESTATE_CASE_TRY(expr)                                  \
  do {                                                            \
    if (std::string text_ = (expr); !text_.empty()) return text_; \
  } while (false)

template <typename Choices>
std::string PrefixCacheCase<Choices>::move(int32_t slot, Owner from, Owner to) {
  if (slot < 0 || static_cast<size_t>(slot) >= owner_.size()) {
    return fail(concat("slot ", slot, " out of nowhere"));
  }
  Owner& owner = owner_[static_cast<size_t>(slot)];
  if (owner != from) {
    return fail(concat("slot ", slot, " has owner ", static_cast<int>(owner), ", expected ",
                       static_cast<int>(from)));
  }
  owner = to;
  return {};
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::give_back(int32_t slot, Owner from) {
  const bool in_flight = pick(0, 3) == 0;
  LINESTATE_CASE_TRY(move(slot, from, in_flight ? Owner::kFlight : Owner::kPool));
  Status status;
  if (in_flight) {
    flights_.push_back({slot, false});
    status = pool_.retire(slot, {[](void* flight) { return static_cast<Flight*>(flight)->landed; },
                                 &flights_.back()});
  } else {
    status = pool_.free(slot);
  }
  return status.ok() ? std::string() : fail(status.to_string());
}

template <typename Choices>
void PrefixCacheCase<Choices>::land_one_flight() {
  if (flights_.empty()) return;
  flights_.front().landed = true;
  pool_.free_slots();  // polls, so that the record may go
  owner_[static_cast<size_t>(flights_.front().slot)] = Owner::kPool;
  flights_.pop_front();
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::allocate(int32_t& slot) {
  Result<int32_t> made = pool_.allocate();
  const auto free = std::count(owner_.begin(), owner_.end(), Owner::kPool);
  if (made.ok() != (free > 0)) return fail(concat("allocate with ", free, " free slots"));
  slot = kPadSlot;
  if (!made.ok()) return {};
  slot = *made;
  if (pool_.snapshot_position(slot).ok()) return fail("a fresh slot carries a mark");
  return move(slot, Owner::kPool, Owner::kRequest);
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::match(const Blocks& blocks, int64_t tail, Held& held) {
  const auto* expected = expected_match(blocks, tail);
  held.lease = cache_.match(tokens_of(blocks, tail));
  ++stats_.lookups;
  if (held.lease.held() != (expected != nullptr)) {
    return fail(concat("match of ", blocks, " + ", tail, ": hit ", held.lease.held()));
  }
  if (expected == nullptr) return {};
  if (held.lease.slot() != expected->second.slot ||
      held.lease.position() != position_of(expected->first)) {
    return fail(concat("match of ", blocks, " + ", tail, ": got position ", held.lease.position(),
                       ", expected ", position_of(expected->first)));
  }
  held.key = expected->first;
  Snapshot& snapshot = model_[held.key];
  snapshot.used = ++clock_;
  ++snapshot.leases;
  ++stats_.hits;
  stats_.hit_tokens += held.lease.position();
  return {};
}

// Which snapshots must leave: the least recently used without a lease, one after the other.
template <typename Choices>
std::string PrefixCacheCase<Choices>::expect_evictions(int64_t count,
                                                       std::vector<int32_t>::const_iterator& freed,
                                                       std::vector<int32_t>::const_iterator end) {
  for (; count > 0; --count) {
    auto oldest = model_.end();
    for (auto it = model_.begin(); it != model_.end(); ++it) {
      if (it->second.leases > 0) continue;
      if (oldest == model_.end() || it->second.used < oldest->second.used) oldest = it;
    }
    if (oldest == model_.end()) return {};
    if (freed == end) return fail("a snapshot that had to leave stayed");
    if (*freed != oldest->second.slot) {
      return fail(concat("evicted slot ", *freed, ", expected ", oldest->second.slot));
    }
    model_.erase(oldest);
    ++stats_.evicted;
    LINESTATE_CASE_TRY(give_back(*freed++, Owner::kCache));
  }
  return {};
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::keep_snapshot(const Blocks& key, int32_t slot) {
  const int64_t position = position_of(key);
  if (const Status marked = pool_.mark_snapshot(slot, position); !marked.ok()) {
    return fail(marked.to_string());
  }
  Result<PrefixCache::Inserted> kept = cache_.insert(tokens_of(key, pick(0, 70)), position, slot);
  if (!kept.ok()) return fail(kept.status().to_string());
  auto freed = kept->freed.cbegin();
  const auto known = model_.find(key);
  auto expected = PrefixCache::InsertOutcome::kInserted;
  if (known != model_.end()) {
    known->second.used = ++clock_;
    expected = PrefixCache::InsertOutcome::kDuplicate;
    ++stats_.duplicates;
  } else {
    const int64_t over = static_cast<int64_t>(model_.size()) + 1 - capacity_;
    LINESTATE_CASE_TRY(expect_evictions(over, freed, kept->freed.cend()));
    if (static_cast<int64_t>(model_.size()) == capacity_) {
      expected = PrefixCache::InsertOutcome::kNoRoom;
      ++stats_.rejected;
    }
  }
  if (kept->outcome != expected) {
    return fail(concat("insert of ", key, ": ", insert_outcome_name(kept->outcome), ", expected ",
                       insert_outcome_name(expected)));
  }
  if (expected == PrefixCache::InsertOutcome::kInserted) {
    model_[key] = {slot, ++clock_, 0};
    ++stats_.inserted;
    LINESTATE_CASE_TRY(move(slot, Owner::kRequest, Owner::kCache));
  } else {
    if (freed == kept->freed.cend() || *freed++ != slot) return fail("newcomer not handed back");
    LINESTATE_CASE_TRY(give_back(slot, Owner::kRequest));
  }
  return freed == kept->freed.cend() ? std::string() : fail("too many slots freed");
}

// What an engine does: the snapshot's bytes go to the request's own slot before it runs.
template <typename Choices>
std::string PrefixCacheCase<Choices>::copy_on_write(const Held& held, int32_t slot) {
  const std::vector<Row> rows = {{slot, RowKind::kExtend, held.lease.position(), 3, -1, -1}};
  ForwardBatch batch;
  batch.rows = rows;
  batch.pre.copy.push_back({held.lease.slot(), slot});
  ExecContext context;
  context.num_threads = 1;  // a kilobyte is no work for two
  const Status status = metadata_.prepare(batch, pool_, context);
  if (!status.ok()) return fail(status.to_string());
  if (first_element(slot) != tag_[static_cast<size_t>(held.lease.slot())]) {
    return fail("the copy is not the snapshot");
  }
  return {};
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::request() {
  const Blocks blocks = random_blocks(6);
  Held held;
  LINESTATE_CASE_TRY(match(blocks, pick(0, 70), held));
  int32_t slot = kPadSlot;
  LINESTATE_CASE_TRY(allocate(slot));
  if (slot != kPadSlot) {
    if (held.lease.held() && pick(0, 7) == 0) LINESTATE_CASE_TRY(copy_on_write(held, slot));
    // The request's own slot becomes the snapshot of its prompt; a new number is in it.
    first_element(slot) = tag_[static_cast<size_t>(slot)] = static_cast<float>(++clock_ % 65536);
    if (blocks.empty()) {
      LINESTATE_CASE_TRY(give_back(slot, Owner::kRequest));
    } else {
      LINESTATE_CASE_TRY(keep_snapshot(blocks, slot));
    }
  }
  hold(std::move(held));
  return {};
}

// Some leases live on for many steps, most end at once.
template <typename Choices>
void PrefixCacheCase<Choices>::hold(Held held) {
  if (!held.lease.held()) return;
  if (held_.size() < 16 && pick(0, 2) == 0) {
    held_.push_back(std::move(held));
  } else {
    --model_[held.key].leases;
  }
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::release_one() {
  if (held_.empty()) return {};
  auto held = std::next(held_.begin(), pick(0, static_cast<int64_t>(held_.size()) - 1));
  if (held->lease.slot() != model_[held->key].slot) return fail("a lease lost its slot");
  if (first_element(held->lease.slot()) != tag_[static_cast<size_t>(held->lease.slot())]) {
    return fail("a leased snapshot was overwritten");
  }
  --model_[held->key].leases;
  if (pick(0, 1) == 0) held->lease.release();  // otherwise by its destructor
  held_.erase(held);
  return {};
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::evict() {
  const int64_t count = pick(-1, 3);
  const std::vector<int32_t> freed = cache_.evict(count);
  auto next = freed.cbegin();
  LINESTATE_CASE_TRY(expect_evictions(count, next, freed.cend()));
  return next == freed.cend() ? std::string() : fail("evicted too many");
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::erase() {
  const Blocks key = random_blocks(5);
  const auto known = model_.find(key);
  const std::vector<int64_t> tokens = tokens_of(key, pick(0, 5));
  if (cache_.contains(tokens, position_of(key)) != (known != model_.end())) {
    return fail(concat("contains of ", key));
  }
  const Result<int32_t> slot = cache_.erase(tokens, position_of(key));
  if (known == model_.end()) {
    return slot.status().code() == StatusCode::kNotFound ? std::string() : fail("erased nothing");
  }
  if (known->second.leases > 0) {
    const bool refused = slot.status().code() == StatusCode::kFailedPrecondition;
    return refused ? std::string() : fail("erased a leased snapshot");
  }
  if (!slot.ok() || *slot != known->second.slot) return fail(concat("erase of ", key));
  model_.erase(known);
  return give_back(*slot, Owner::kCache);
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::take() {
  if (held_.empty()) return {};
  Held& held = held_.front();
  const Snapshot snapshot = model_[held.key];
  const Result<int32_t> slot = cache_.take(held.lease);
  if (slot.ok() != (snapshot.leases == 1)) return fail("take with other leases");
  if (!slot.ok()) return held.lease.held() ? std::string() : fail("take lost the lease");
  if (*slot != snapshot.slot || held.lease.held()) return fail("take gave another slot");
  model_.erase(held.key);
  held_.pop_front();
  return give_back(*slot, Owner::kCache);
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::clear() {
  Result<std::vector<int32_t>> freed = cache_.clear();
  if (freed.ok() != held_.empty()) return fail("clear with leases");
  if (!freed.ok()) return {};
  if (freed->size() != model_.size()) return fail("clear lost a slot");
  for (int32_t slot : *freed) LINESTATE_CASE_TRY(give_back(slot, Owner::kCache));
  model_.clear();
  return {};
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::bad_input() {
  const std::vector<int64_t> tokens = tokens_of("ab", 5);
  const int64_t positions[] = {0, -64, 1, 63, 65, 129, 192, INT64_MIN, INT64_MAX};
  const int64_t position = positions[pick(0, 8)];
  PrefixCache::Lease empty;
  const bool refused =
      cache_.insert(tokens, position, 0).status().code() == StatusCode::kInvalidArgument &&
      cache_.insert(tokens, 64, -1).status().code() == StatusCode::kInvalidArgument &&
      cache_.erase(tokens, position).status().code() == StatusCode::kNotFound &&
      cache_.take(empty).status().code() == StatusCode::kInvalidArgument &&
      !cache_.contains(tokens, position);
  if (!refused) return fail(concat("bad position ", position, " was taken"));
  if (model_.empty()) return {};
  const int32_t owned = model_.begin()->second.slot;
  const bool twice = cache_.insert(tokens, 64, owned).ok();
  return twice ? fail("one slot inserted twice") : std::string();
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::step() {
  ++steps_;
  const int64_t what = pick(0, 99);
  if (what < 40) return request();
  if (what < 55) {
    Held held;
    const Blocks blocks = random_blocks(6);  // before the next choice, in every compiler
    LINESTATE_CASE_TRY(match(blocks, pick(0, 64), held));
    hold(std::move(held));
    return {};
  }
  if (what < 80) return release_one();
  if (what < 86) return evict();
  if (what < 90) return erase();
  if (what < 92) return take();
  if (what < 93) return pick(0, 9) == 0 ? clear() : std::string();
  if (what < 95) return bad_input();
  land_one_flight();
  return {};
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::check_everything() {
  const auto owned = [&](Owner owner) {
    return static_cast<int64_t>(std::count(owner_.begin(), owner_.end(), owner));
  };
  if (pool_.free_slots() != owned(Owner::kPool)) return fail("free slots");
  if (pool_.in_flight_slots() != owned(Owner::kFlight)) return fail("slots in flight");
  if (owned(Owner::kRequest) != 0) return fail("a finished request kept a slot");
  if (owned(Owner::kCache) != static_cast<int64_t>(model_.size())) return fail("cache's slots");
  int64_t leased = 0;
  for (const auto& [key, snapshot] : model_) {
    leased += snapshot.leases > 0 ? 1 : 0;
    const Result<int64_t> position = pool_.snapshot_position(snapshot.slot);
    if (!position.ok() || *position != position_of(key)) return fail("position mark of " + key);
    if (!cache_.contains(tokens_of(key, 0), position_of(key))) return fail("lost " + key);
    if (first_element(snapshot.slot) != tag_[static_cast<size_t>(snapshot.slot)]) {
      return fail("bytes of " + key);
    }
  }
  const PrefixCacheStats stats = cache_.stats();
  const auto size = static_cast<int64_t>(model_.size());
  const bool same = stats.lookups == stats_.lookups && stats.hits == stats_.hits &&
                    stats.hit_tokens == stats_.hit_tokens && stats.inserted == stats_.inserted &&
                    stats.duplicates == stats_.duplicates && stats.rejected == stats_.rejected &&
                    stats.evicted == stats_.evicted && stats.entries == size &&
                    stats.leased == leased && stats.bytes == size * bytes_per_slot(spec()) &&
                    size <= capacity_;
  return same ? std::string() : fail("statistics");
}

template <typename Choices>
std::string PrefixCacheCase<Choices>::finish() {
  while (!held_.empty()) LINESTATE_CASE_TRY(release_one());
  while (!flights_.empty()) land_one_flight();
  LINESTATE_CASE_TRY(check_everything());
  LINESTATE_CASE_TRY(clear());
  while (!flights_.empty()) land_one_flight();
  LINESTATE_CASE_TRY(check_everything());
  const bool whole = pool_.free_slots() == pool_.num_slots();
  return whole ? std::string() : fail("the pool is not whole again");
}

#undef LINESTATE_CASE_TRY

}  // namespace linestate
