// Cases P10, P11 and P12 of docs/cases.md: a snapshot is the state after exactly its position.
#include "backends/backend_engine_fixture.h"
#include "linestate/prefix_cache.h"
#include "tests/oracle_case.h"

namespace linestate::testing {
namespace {

Piece extend(int32_t slot, int64_t start, int64_t end) {
  return {1, {slot, RowKind::kExtend, start, static_cast<int32_t>(end - start), -1, -1}, {}};
}
Piece decode(int32_t slot, int64_t start) {
  return {1, {slot, RowKind::kDecode, start, 1, -1, -1}, {}};
}

EngineOptions options(const std::string& kernel, DType state = DType::kF32) {
  EngineOptions options;
  options.kernel = kernel;
  options.state = state;
  return options;
}

/// Runs the pieces [cuts[i], cuts[i+1]) in slot `slot`.
void run_pieces(Engine& engine, int32_t slot, const std::vector<int64_t>& cuts) {
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    ASSERT_TRUE(engine.run({extend(slot, cuts[i], cuts[i + 1])}).ok());
  }
}

TEST(Cases, P10_PrefillWritesTheSnapshotItWasAskedFor) {
  for (const std::string& kernel : kKernelRows) {
    Engine cold(options(kernel));  // every slot holds NaN before
    StepExtras extras;
    extras.snapshots = {{0, 64, 7}};
    ASSERT_TRUE(cold.run({extend(3, 0, 130)}, extras).ok());
    EXPECT_TRUE(cold.metadata().snapshot_taken(0));
    const auto outputs = cold.outputs(64, 130);
    const auto state = cold.slot(3);
    Engine split(options(kernel));
    run_pieces(split, 3, {0, 64});
    expect_same(cold.slot(7), split.slot(3), "after exactly 64 tokens");
    StepExtras resume;
    resume.pre.copy = {{7, 1}};
    ASSERT_TRUE(cold.run({extend(1, 64, 130)}, resume).ok());
    expect_same(cold.outputs(0, 66), outputs, "resumed");
    expect_same(cold.slot(1), state, "resumed");
  }
}

TEST(Cases, P10_DecodeTakesTheSnapshotThatItCrosses) {
  for (const std::string& kernel : kKernelRows) {
    Engine engine(options(kernel));
    run_pieces(engine, 3, {0, 190});
    for (int64_t t = 190; t < 194; ++t) {
      StepExtras extras;
      if (t == 191) extras.snapshots = {{0, 192, 7}};
      ASSERT_TRUE(engine.run({decode(3, t)}, extras).ok());
      if (t == 191) {
        EXPECT_TRUE(engine.metadata().snapshot_taken(0));
        expect_same(engine.slot(7), engine.slot(3), "192 tokens");
      }
    }
    // What a row does not reach is refused before anything runs.
    const auto before = engine.slot(3);
    StepExtras extras;
    for (const int64_t position : {194, 196, 0, -1}) {
      extras.snapshots = {{0, position, 7}};
      EXPECT_EQ(engine.run({decode(3, 194)}, extras).code(), StatusCode::kInvalidArgument);
    }
    expect_same(engine.slot(3), before, "refused");
  }
}

TEST(Cases, P11_SnapshotPositionsAreTokensOfTheSequence) {
  for (const std::string& kernel : kKernelRows) {
    for (const DType state : {DType::kF32, DType::kBF16}) {
      Engine cold(options(kernel, state));
      run_pieces(cold, 2, {0, 128});
      StepExtras extras;
      extras.snapshots = {{0, 384, 6}};
      ASSERT_TRUE(cold.run({extend(2, 128, 400)}, extras).ok());
      Engine split(options(kernel, state));
      run_pieces(split, 2, {0, 128, 384});
      expect_same(cold.slot(6), split.slot(2), "after 384 tokens");
      StepExtras resume;
      resume.pre.copy = {{6, 4}};
      ASSERT_TRUE(cold.run({extend(4, 384, 400)}, resume).ok());
      ASSERT_TRUE(split.run({extend(2, 384, 400)}).ok());
      expect_same(cold.slot(4), split.slot(2), "hit = split at the same token");
      expect_same(cold.outputs(0, 16), split.outputs(0, 16), "hit = split at the same token");
      if (state == DType::kF32) expect_same(cold.slot(4), cold.slot(2), "hit = cold");
    }
  }
}

TEST(Cases, P12_APromptOnTheGridResumesOneChunkBack) {
  for (const std::string& kernel : kKernelRows) {
    Engine engine(options(kernel));
    std::vector<int64_t> prompt;
    for (int64_t t = 0; t < 128; ++t) prompt.push_back(1000 + t);
    PrefixCacheOptions cache_options;
    cache_options.bytes_per_snapshot = bytes_per_slot(engine.pool().spec());
    cache_options.byte_budget = 4 * cache_options.bytes_per_snapshot;
    Result<PrefixCache> cache = PrefixCache::create(cache_options);
    ASSERT_TRUE(cache.ok());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine.pool().allocate().ok());  // slots 0, 1, 2
    StepExtras extras;
    extras.snapshots = {{0, 64, 1}, {0, 128, 2}};
    ASSERT_TRUE(engine.run({extend(0, 0, 128)}, extras).ok());
    const auto outputs = engine.outputs(64, 128);
    for (const auto& [slot, position] : {std::pair<int32_t, int64_t>{1, 64}, {2, 128}}) {
      ASSERT_TRUE(engine.pool().mark_snapshot(slot, position).ok());
      ASSERT_TRUE(cache->insert(prompt, position, slot).ok());
    }
    PrefixCache::Lease hit = cache->match(prompt);
    ASSERT_TRUE(hit.held());
    EXPECT_EQ(hit.position(), 64) << "127 tokens may be reused, 128 may not";
    EXPECT_EQ(*engine.pool().snapshot_position(hit.slot()), 64);
    StepExtras resume;
    resume.pre.copy = {{hit.slot(), 5}};
    ASSERT_TRUE(engine.run({extend(5, hit.position(), 128)}, resume).ok());
    expect_same(engine.outputs(0, 64), outputs, "recomputed");
    expect_same(engine.slot(5), engine.slot(2), "128 tokens");
    hit.release();

    // One token more and the later snapshot is a proper prefix.
    prompt.push_back(9);
    EXPECT_EQ(cache->match(prompt).position(), 128);
    EXPECT_FALSE(cache->contains(prompt, 127));
    EXPECT_EQ(cache->insert(prompt, 127, 6).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(engine.pool().snapshot_position(0).status().code(), StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace linestate::testing
