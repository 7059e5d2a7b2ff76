#include <gtest/gtest.h>

#include "cli/replay/engine.h"

namespace linestate::cli {
namespace {

TEST(MemoryBudget, SlotsFollowThePoolBytes) {
  ReplayOptions options;
  EXPECT_EQ(choose_slots(options, 1000).value(), 16);
  options.pool_bytes_given = true;
  options.pool_bytes = 3500;
  EXPECT_EQ(choose_slots(options, 1000).value(), 3);
  options.pool_bytes = 1 << 30;
  EXPECT_EQ(choose_slots(options, 1000).value(), 16);
}

TEST(MemoryBudget, TooSmallNamesWhatIsNeeded) {
  ReplayOptions options;
  options.pool_bytes_given = true;
  options.pool_bytes = 999;
  const auto none = choose_slots(options, 1000);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().message(),
            "--pool-bytes 999 is too small: one slot of tiny takes 1000 bytes, 1 slot needs 1000 "
            "bytes");
  options.pool_bytes = 3500;
  options.max_running = 4;
  options.max_running_given = true;
  const auto few = choose_slots(options, 1000);
  ASSERT_FALSE(few.ok());
  EXPECT_NE(few.status().message().find("4 slots need 4000 bytes"), std::string::npos);
}

TEST(MemoryBudget, CacheSlotsFollowTheCacheBytes) {
  ReplaySettings settings;
  EXPECT_EQ(choose_cache_slots(settings, 5, 1000).value(), 0) << "off";
  settings.prefix_cache = true;
  EXPECT_EQ(choose_cache_slots(settings, 5, 1000).value(), 5);
  settings.options.cache_bytes_given = true;
  settings.options.cache_bytes = 3999;
  EXPECT_EQ(choose_cache_slots(settings, 5, 1000).value(), 3);
  settings.options.cache_bytes = 999;
  const auto none = choose_cache_slots(settings, 5, 1000);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().message(),
            "--cache-bytes 999 is too small: one snapshot of tiny takes 1000 bytes");
}

TEST(MemoryBudget, MoreThanTheMachineHasIsRefused) {
  EXPECT_TRUE(check_memory(100, 100).ok());
  EXPECT_TRUE(check_memory(100, -1).ok()) << "unknown";
  const Status status = check_memory(101, 100);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("needs 101 bytes"), std::string::npos) << status.message();
  EXPECT_GT(available_memory(), 0);
}

}  // namespace
}  // namespace linestate::cli
