#include "linestate/prefix_cache.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "state/prefix_tree.h"

namespace linestate {
namespace {

using Tokens = std::vector<int64_t>;
using Outcome = PrefixCache::InsertOutcome;
using Slots = std::vector<int32_t>;

// Token i of text `name` is name * 10^6 + i.
Tokens text(int64_t size, int64_t name = 1) {
  Tokens tokens;
  for (int64_t i = 0; i < size; ++i) tokens.push_back(name * 1'000'000 + i);
  return tokens;
}

// `head`'s first `shared` tokens, then `size - shared` others.
Tokens branch(const Tokens& head, int64_t shared, int64_t size, int64_t name) {
  Tokens tokens(head.begin(), head.begin() + shared);
  const Tokens rest = text(size - shared, name);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return tokens;
}

PrefixCache make(int64_t capacity, int64_t block = 64) {
  Result<PrefixCache> cache = PrefixCache::create({block, capacity * 1000, 1000});
  EXPECT_TRUE(cache.ok()) << cache.status().to_string();
  return *std::move(cache);
}

void put(PrefixCache& cache, const Tokens& tokens, int64_t position, int32_t slot) {
  const Result<PrefixCache::Inserted> kept = cache.insert(tokens, position, slot);
  ASSERT_TRUE(kept.ok()) << kept.status().to_string();
  ASSERT_EQ(kept->outcome, Outcome::kInserted);
  ASSERT_TRUE(kept->freed.empty());
}

TEST(PrefixCache, PromptThatEndsOnASnapshotGetsTheOneBefore) {
  PrefixCache cache = make(10);
  const Tokens prompt = text(200);
  put(cache, prompt, 64, 5);
  put(cache, prompt, 128, 6);
  auto position = [&](size_t size) {
    return cache.match(std::span(prompt).first(size)).position();
  };
  EXPECT_EQ(position(128), 64) << "one token must be left to compute";
  EXPECT_EQ(position(127), 64);
  EXPECT_EQ(position(129), 128);
  EXPECT_EQ(position(200), 128);
  EXPECT_EQ(position(65), 64);
  EXPECT_EQ(position(64), 0);
  EXPECT_EQ(position(1), 0);
  EXPECT_EQ(position(0), 0);
}

TEST(PrefixCache, AMissReadsAsAFreshRow) {
  PrefixCache cache = make(4);
  const PrefixCache::Lease lease = cache.match(text(100));
  EXPECT_FALSE(lease.held());
  EXPECT_EQ(lease.slot(), kPadSlot);
  EXPECT_EQ(lease.position(), 0);
}

TEST(PrefixCache, OneDifferentTokenAnywhereInTheBlockIsAnotherPrefix) {
  PrefixCache cache = make(4);
  const Tokens prompt = text(300);
  put(cache, prompt, 256, 9);
  for (size_t at : {0u, 1u, 63u, 64u, 200u, 255u}) {
    Tokens other = prompt;
    other[at] = -other[at];
    EXPECT_FALSE(cache.match(other).held()) << at;
  }
  Tokens behind = prompt;
  behind[256] = 0;
  EXPECT_EQ(cache.match(behind).slot(), 9);
}

TEST(PrefixCache, BranchesShareWhatTheyShare) {
  PrefixCache cache = make(10);
  const Tokens head = text(1000);
  const Tokens other = branch(head, 300, 1000, 2);  // differs inside the block [256, 320)
  put(cache, head, 640, 1);
  put(cache, other, 640, 2);
  EXPECT_FALSE(cache.match(branch(head, 300, 400, 3)).held()) << "a fork is no snapshot";
  put(cache, head, 256, 3);
  EXPECT_EQ(cache.match(branch(head, 300, 400, 3)).slot(), 3);
  EXPECT_EQ(cache.match(head).slot(), 1);
  EXPECT_EQ(cache.match(other).slot(), 2);
  EXPECT_EQ(*cache.erase(head, 640), 1);
  EXPECT_EQ(cache.match(head).slot(), 3) << "falls back to the shorter one";
  EXPECT_EQ(cache.match(other).slot(), 2);
}

TEST(PrefixCache, PagesOfTwoChunks) {
  PrefixCache cache = make(4, 128);
  const Tokens prompt = text(400);
  put(cache, prompt, 384, 7);
  EXPECT_EQ(cache.match(prompt).position(), 384);
  EXPECT_EQ(cache.insert(prompt, 64, 8).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(cache.match(std::span(prompt).first(384)).held());
}

TEST(PrefixCache, DuplicateComesBack) {
  PrefixCache cache = make(4);
  put(cache, text(64), 64, 3);
  const Result<PrefixCache::Inserted> again = cache.insert(text(64), 64, 4);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->outcome, Outcome::kDuplicate);
  EXPECT_EQ(again->freed, (Slots{4}));
  EXPECT_EQ(cache.match(text(65)).slot(), 3) << "readers of the old slot see no change";
}

TEST(PrefixCache, LeastRecentlyUsedLeavesFirst) {
  PrefixCache cache = make(3);
  for (int32_t i = 0; i < 3; ++i) put(cache, text(64, i), 64, i);
  cache.match(text(65, 0)).release();  // 1 is now the oldest
  Result<PrefixCache::Inserted> kept = cache.insert(text(64, 3), 64, 3);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->outcome, Outcome::kInserted);
  EXPECT_EQ(kept->freed, (Slots{1}));
  ASSERT_TRUE(cache.insert(text(64, 2), 64, 8).ok()) << "a duplicate is a use";
  EXPECT_EQ(cache.evict(2), (Slots{0, 3}));
  EXPECT_EQ(cache.evict(5), (Slots{2}));
  EXPECT_EQ(cache.evict(5), (Slots{}));
  EXPECT_EQ(cache.evict(-1), (Slots{}));
}

TEST(PrefixCache, LeasedSnapshotsStay) {
  PrefixCache cache = make(2);
  put(cache, text(64, 0), 64, 0);
  put(cache, text(64, 1), 64, 1);
  PrefixCache::Lease a = cache.match(text(65, 0));
  PrefixCache::Lease b = cache.match(text(65, 1));
  PrefixCache::Lease b_again = cache.match(text(65, 1));
  EXPECT_EQ(cache.stats().leased, 2);
  const Result<PrefixCache::Inserted> kept = cache.insert(text(64, 2), 64, 2);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->outcome, Outcome::kNoRoom);
  EXPECT_EQ(kept->freed, (Slots{2}));
  EXPECT_EQ(cache.evict(2), (Slots{}));
  EXPECT_EQ(cache.erase(text(64, 1), 64).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache.clear().status().code(), StatusCode::kFailedPrecondition);
  b.release();
  b.release();
  EXPECT_EQ(cache.evict(2), (Slots{})) << "the second lease still holds it";
  b_again.release();
  EXPECT_EQ(cache.evict(2), (Slots{1}));
  a = PrefixCache::Lease();
  EXPECT_EQ(*cache.clear(), (Slots{0}));
  EXPECT_EQ(cache.stats().entries, 0);
}

TEST(PrefixCache, LeasesMoveAndMayOutliveTheCache) {
  PrefixCache::Lease outer;
  {
    PrefixCache cache = make(2);
    put(cache, text(64), 64, 5);
    PrefixCache::Lease inner = cache.match(text(65));
    outer = std::move(inner);
    EXPECT_FALSE(inner.held());  // NOLINT(bugprone-use-after-move): moved-from is empty
    EXPECT_EQ(inner.slot(), kPadSlot);
    PrefixCache::Lease third(std::move(outer));
    EXPECT_EQ(cache.stats().leased, 1);
    PrefixCache moved(std::move(cache));
    EXPECT_EQ(moved.evict(1), (Slots{}));
    outer = std::move(third);
  }
  EXPECT_EQ(outer.slot(), 5);
  outer.release();
  EXPECT_FALSE(outer.held());
}

TEST(PrefixCache, TakeHandsTheSlotOver) {
  PrefixCache cache = make(4);
  put(cache, text(64), 64, 5);
  PrefixCache::Lease lease = cache.match(text(65));
  PrefixCache::Lease second = cache.match(text(65));
  EXPECT_EQ(cache.take(lease).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(lease.held());
  second.release();
  PrefixCache other = make(1);
  EXPECT_EQ(other.take(lease).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*cache.take(lease), 5);
  EXPECT_FALSE(lease.held());
  EXPECT_EQ(cache.take(lease).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(cache.match(text(65)).held());
  put(cache, text(64), 64, 5);
}

TEST(PrefixCache, CountsWhatHappened) {
  PrefixCache cache = make(2);
  put(cache, text(128), 128, 0);
  put(cache, text(64, 1), 64, 1);
  cache.match(text(200)).release();
  cache.match(text(200, 7)).release();
  ASSERT_TRUE(cache.insert(text(128), 128, 2).ok());
  ASSERT_TRUE(cache.insert(text(64, 2), 64, 2).ok());
  const PrefixCacheStats stats = cache.stats();
  EXPECT_EQ(stats.lookups, 2);
  EXPECT_EQ(stats.hits, 1);
  EXPECT_EQ(stats.hit_tokens, 128);
  EXPECT_EQ(stats.inserted, 3);
  EXPECT_EQ(stats.duplicates, 1);
  EXPECT_EQ(stats.evicted, 1);
  EXPECT_EQ(stats.entries, 2);
  EXPECT_EQ(stats.leased, 0);
  EXPECT_EQ(stats.bytes, 2000);
  EXPECT_TRUE(cache.contains(text(64, 2), 64));
  EXPECT_EQ(cache.stats().lookups, 2);
}

TEST(PrefixCache, RefusesByName) {
  struct Case {
    PrefixCacheOptions options;
    const char* text;
  };
  for (const Case& item :
       {Case{{0, 1, 1}, "options.block_tokens: expected a positive multiple"},
        Case{{-64, 1, 1}, "options.block_tokens"}, Case{{96, 1, 1}, "options.block_tokens"},
        Case{{64, -1, 1}, "options.byte_budget: expected >= 0, got -1"},
        Case{{64, 1, 0}, "options.bytes_per_snapshot: expected >= 1"}}) {
    const Status status = PrefixCache::create(item.options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(item.text), std::string::npos) << status.message();
  }
  PrefixCache cache = make(4);
  const Tokens tokens = text(130);
  auto message = [&](int64_t position, int32_t slot) {
    return cache.insert(tokens, position, slot).status().message();
  };
  put(cache, tokens, 64, 3);
  EXPECT_NE(message(0, 1).find("position: expected a positive multiple"), std::string::npos);
  EXPECT_NE(message(100, 1).find("block_tokens = 64, got 100"), std::string::npos);
  EXPECT_NE(message(192, 1).find("at most the 130 tokens, got 192"), std::string::npos);
  EXPECT_NE(message(128, -1).find("slot: expected >= 0"), std::string::npos);
  EXPECT_NE(message(128, 3).find("got 3, the snapshot at position 64"), std::string::npos);
  EXPECT_EQ(cache.stats().entries, 1);
}

TEST(PrefixCache, LongConversationIsNoDeepRecursion) {
  constexpr int64_t kTurns = 20'000;
  PrefixCache cache = make(kTurns);
  const Tokens tokens = text(kTurns * 64);
  // The whole first: each shorter one then splits the first edge.
  for (int64_t turn = kTurns; turn > kTurns - 64; --turn) {
    ASSERT_TRUE(cache.insert(tokens, turn * 64, static_cast<int32_t>(turn)).ok());
  }
  for (int64_t turn = 1; turn <= 300; ++turn) {
    ASSERT_TRUE(cache.insert(tokens, turn * 64, static_cast<int32_t>(turn)).ok());
  }
  EXPECT_EQ(cache.match(tokens).position(), (kTurns - 1) * 64);
}

// The tree alone: its own rules after every change, against all prefixes tried one by one.
TEST(PrefixTree, KeepsItsRules) {
  PrefixTree tree(2);
  int values[6];
  const Tokens whole = {1, 2, 3, 4, 5, 6, 7, 8};
  const Tokens fork = {1, 2, 3, 4, 9, 9};
  PrefixTree::Node* deep = tree.insert(whole);
  deep->value = &values[0];
  EXPECT_EQ(tree.num_nodes(), 1) << "one compressed edge";
  tree.insert(fork)->value = &values[1];
  EXPECT_STREQ(tree.broken_rule(), "");
  EXPECT_EQ(tree.num_nodes(), 3) << "a fork at [1 2 3 4]";
  EXPECT_EQ(tree.find(std::span(whole).first(4))->value, nullptr);
  EXPECT_EQ(tree.longest(std::span(whole).first(6)), nullptr);
  EXPECT_EQ(tree.find(std::span(whole).first(6)), nullptr);
  EXPECT_EQ(tree.find({}), nullptr);
  tree.insert(std::span(whole).first(4))->value = &values[2];
  EXPECT_EQ(tree.num_nodes(), 3) << "the fork took the value";
  tree.remove(tree.find(fork));
  EXPECT_STREQ(tree.broken_rule(), "");
  EXPECT_EQ(tree.num_nodes(), 2);
  tree.remove(tree.find(std::span(whole).first(4)));
  EXPECT_STREQ(tree.broken_rule(), "");
  EXPECT_EQ(tree.num_nodes(), 1) << "joined again";
  EXPECT_EQ(tree.find(whole), deep);
  EXPECT_EQ(deep->value, &values[0]);
  tree.remove(deep);
  EXPECT_EQ(tree.num_nodes(), 0);
  EXPECT_STREQ(tree.broken_rule(), "");
}

}  // namespace
}  // namespace linestate
