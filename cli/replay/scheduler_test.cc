#include "cli/replay/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "testing/fill.h"

namespace linestate::cli {
namespace {

// Runs everything; checks each step's invariants and that every token runs exactly once, in order.
void run_all(const std::vector<RequestLengths>& requests, SchedulerOptions options,
             int64_t arrivals_per_step) {
  Scheduler scheduler(requests, options);
  std::vector<int64_t> next(requests.size(), 0);
  std::vector<int64_t> admitted;
  std::vector<bool> holds_slot(requests.size(), false);
  size_t arrived = 0;
  int64_t finished = 0;
  while (arrived < requests.size() || !scheduler.idle()) {
    for (int64_t i = 0; i < arrivals_per_step && arrived < requests.size(); ++i) {
      scheduler.arrive(static_cast<int64_t>(arrived++));
    }
    const StepPlan plan = scheduler.plan();
    ASSERT_FALSE(plan.empty());
    for (const int64_t request : plan.admitted) {
      admitted.push_back(request);
      holds_slot[static_cast<size_t>(request)] = true;
    }
    ASSERT_LE(std::count(holds_slot.begin(), holds_slot.end(), true), options.max_running);
    ASSERT_EQ(scheduler.running(), std::count(holds_slot.begin(), holds_slot.end(), true));
    int64_t prefill = 0;
    for (const ScheduledRow& row : plan.extend) {
      const auto r = static_cast<size_t>(row.request);
      ASSERT_TRUE(holds_slot[r]);
      ASSERT_EQ(row.start, next[r]);
      ASSERT_GE(row.tokens, 1);
      next[r] += row.tokens;
      ASSERT_LE(next[r], requests[r].input);
      prefill += row.tokens;
    }
    ASSERT_LE(prefill, options.prefill_budget);
    for (const ScheduledRow& row : plan.decode) {
      const auto r = static_cast<size_t>(row.request);
      ASSERT_TRUE(holds_slot[r]);
      ASSERT_EQ(row.tokens, 1);
      ASSERT_EQ(row.start, next[r]);
      ASSERT_GE(row.start, requests[r].input);
      ++next[r];
    }
    // Every running request that is through its prefill decodes in every step.
    int64_t decoding = 0;
    for (size_t r = 0; r < requests.size(); ++r) {
      if (holds_slot[r] && next[r] > requests[r].input) ++decoding;
    }
    ASSERT_EQ(decoding, static_cast<int64_t>(plan.decode.size()));
    for (const int64_t request : scheduler.complete(plan)) {
      const auto r = static_cast<size_t>(request);
      ASSERT_EQ(next[r], requests[r].input + requests[r].output);
      holds_slot[r] = false;
      ++finished;
    }
    ASSERT_EQ(scheduler.finished(), finished);
  }
  ASSERT_EQ(finished, static_cast<int64_t>(requests.size()));
  std::vector<int64_t> expected(requests.size());
  for (size_t r = 0; r < requests.size(); ++r) expected[r] = static_cast<int64_t>(r);
  EXPECT_EQ(admitted, expected) << "admission is first come, first served";
}

TEST(Scheduler, InvariantsOnRandomTraces) {
  testing::Random random(11);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<RequestLengths> requests;
    const int64_t count = random.integer(1, 30);
    for (int64_t i = 0; i < count; ++i) {
      requests.push_back({random.integer(1, 300), random.integer(1, 20)});
    }
    const SchedulerOptions options{random.integer(1, 200), random.integer(1, 6)};
    run_all(requests, options, random.integer(1, 10));
  }
}

TEST(Scheduler, ChunksAndSharesTheBudget) {
  Scheduler scheduler({{100, 2}, {30, 1}}, {64, 4});
  scheduler.arrive(0);
  scheduler.arrive(1);
  StepPlan plan = scheduler.plan();
  ASSERT_EQ(plan.extend.size(), 1u);
  EXPECT_EQ(plan.extend[0].tokens, 64);
  EXPECT_TRUE(scheduler.complete(plan).empty());
  plan = scheduler.plan();
  ASSERT_EQ(plan.extend.size(), 2u);
  EXPECT_EQ(plan.extend[0].tokens, 36);
  EXPECT_EQ(plan.extend[1].tokens, 28);
  EXPECT_TRUE(scheduler.complete(plan).empty());
  plan = scheduler.plan();  // the first decodes while the second finishes its prefill
  ASSERT_EQ(plan.decode.size(), 1u);
  EXPECT_EQ(plan.decode[0].start, 100);
  ASSERT_EQ(plan.extend.size(), 1u);
  EXPECT_EQ(plan.extend[0].start, 28);
  EXPECT_EQ(plan.extend[0].tokens, 2);
}

TEST(Scheduler, CachedTokensNeedNoPrefill) {
  Scheduler scheduler({{100, 1}, {80, 1}}, {30, 4});
  scheduler.arrive(0);
  scheduler.arrive(1);
  std::vector<int64_t> asked;
  const auto cached = [&](int64_t request) {
    asked.push_back(request);
    return request == 0 ? int64_t{64} : int64_t{0};
  };
  StepPlan plan = scheduler.plan(cached);
  ASSERT_EQ(plan.extend.size(), 1u);
  EXPECT_EQ(plan.extend[0].start, 64);
  EXPECT_EQ(plan.extend[0].tokens, 30);
  EXPECT_TRUE(scheduler.complete(plan).empty());
  plan = scheduler.plan(cached);
  ASSERT_EQ(plan.extend.size(), 2u);
  EXPECT_EQ(plan.extend[0].start, 94);
  EXPECT_EQ(plan.extend[1].start, 0);
  EXPECT_EQ(asked, (std::vector<int64_t>{0, 1})) << "once each";
}

TEST(Scheduler, AcceptedDraftsAdvance) {
  Scheduler scheduler({{10, 5}}, {30, 4});
  scheduler.arrive(0);
  EXPECT_TRUE(scheduler.complete(scheduler.plan()).empty());
  StepPlan plan = scheduler.plan();
  plan.verify.push_back({{0, 10, 4}, {}});
  plan.decode.clear();
  EXPECT_TRUE(scheduler.complete(plan).empty());
  plan = scheduler.plan();
  ASSERT_EQ(plan.decode.size(), 1u);
  EXPECT_EQ(plan.decode[0].start, 14);
  EXPECT_EQ(scheduler.complete(plan), std::vector<int64_t>{0});
}

TEST(Scheduler, EmptyWhenNothingArrived) {
  Scheduler scheduler({{1, 1}}, {});
  EXPECT_TRUE(scheduler.plan().empty());
  EXPECT_TRUE(scheduler.idle());
}

}  // namespace
}  // namespace linestate::cli
