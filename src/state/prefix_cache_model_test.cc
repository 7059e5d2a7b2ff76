#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "state/prefix_cache_case.h"
#include "testing/fill.h"

namespace linestate {
namespace {

// Operations in all; LINESTATE_MODEL_STEPS overrides. Sanitizers run about twenty times slower.
int64_t steps_wanted() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int64_t kDefault = 50'000;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  constexpr int64_t kDefault = 50'000;
#else
  constexpr int64_t kDefault = 1'000'000;
#endif
#else
  constexpr int64_t kDefault = 1'000'000;
#endif
  const char* wanted = std::getenv("LINESTATE_MODEL_STEPS");
  return wanted == nullptr ? kDefault : std::max<int64_t>(1, std::atoll(wanted));
}

struct Size {
  int64_t slots;
  int64_t capacity;
};

class PrefixCacheModel : public ::testing::TestWithParam<Size> {};

TEST_P(PrefixCacheModel, AgreesWithAMap) {
  testing::Random random(static_cast<uint64_t>(GetParam().slots * 1000 + GetParam().capacity));
  PrefixCacheCase<testing::Random> cache(random, GetParam().slots, GetParam().capacity);
  const int64_t steps = steps_wanted() / 4;
  for (int64_t i = 0; i < steps; ++i) {
    std::string problem = cache.step();
    if (problem.empty() && i % 128 == 0) problem = cache.check_everything();
    ASSERT_EQ(problem, "");
  }
  EXPECT_EQ(cache.finish(), "");
}

// A cache with room, one that is always full, one bounded by the pool, and one that keeps nothing.
INSTANTIATE_TEST_SUITE_P(Sizes, PrefixCacheModel,
                         ::testing::Values(Size{200, 150}, Size{40, 8}, Size{12, 100}, Size{8, 0}),
                         [](const auto& info) {
                           return "Slots" + std::to_string(info.param.slots) + "Capacity" +
                                  std::to_string(info.param.capacity);
                         });

}  // namespace
}  // namespace linestate
