// The cursor protocol, by hand and against a model over many steps.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "linestate/ops/replay_ring.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate::testing {
namespace {

using Ints = std::vector<int32_t>;

Ints ints_of(const HostTensor& tensor) {
  Ints out;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    out.push_back(static_cast<int32_t>(tensor.at(i)));
  }
  return out;
}

struct Step {
  Ints slot, start, valid, force;
  int64_t R = 4;
  HostTensor cursor, pending, flush;

  Status run(const char* kernel) {
    const HostTensor slots = i32_tensor(slot);
    const HostTensor starts = i32_tensor(start);
    const HostTensor valids = i32_tensor(valid);
    HostTensor forced(DType::kBool, {static_cast<int64_t>(slot.size())});
    for (size_t n = 0; n < force.size(); ++n) forced.set(static_cast<int64_t>(n), force[n]);
    pending = HostTensor(DType::kI32, {static_cast<int64_t>(slot.size())});
    flush = HostTensor(DType::kU8, {static_cast<int64_t>(slot.size())});
    fill_constant(pending, 77);
    fill_constant(flush, 77);
    ReplayStepParams p;
    p.rows = {slots, {}, starts.view(), valids.view()};
    if (!force.empty()) p.force_flush = forced;
    p.ring_length = R;
    p.cursor = cursor;
    p.pending = pending;
    p.flush = flush;
    return replay_step_begin(p, {}, kernel);
  }
};

class ReplayStepBegin : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, ReplayStepBegin, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ReplayStepBegin, EveryKindOfRow) {
  // resumed, full, fresh over a stale cursor, padding, not valid, fresh and not valid, forced
  Step step;
  step.slot = {0, 1, 2, -1, 3, 4, 5, 99};
  step.start = {9, 9, 0, 9, 9, 0, 9, 0};
  step.valid = {1, 1, 1, 1, 0, 0, 1, 1};
  step.force = {0, 0, 0, 1, 1, 1, 1, 0};
  step.cursor = i32_tensor({1, 3, 1000, 2, 3, 2, 5});
  ASSERT_TRUE(step.run(GetParam()).ok());
  EXPECT_EQ(ints_of(step.pending), (Ints{1, 3, 0, 0, 0, 0, 2, 0}));
  EXPECT_EQ(ints_of(step.flush), (Ints{0, 1, 0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(ints_of(step.cursor), (Ints{2, 0, 1, 2, 0, 0, 5}));
}

TEST_P(ReplayStepBegin, EveryRthTokenFlushes) {
  for (int64_t R : {1, 2, 7, 64}) {
    Step step;
    step.R = R;
    step.slot = {2};
    step.valid = {1};
    step.cursor = i32_tensor({8, 8, 8});
    for (int32_t t = 0; t < 150; ++t) {
      step.start = {t};
      ASSERT_TRUE(step.run(GetParam()).ok());
      EXPECT_EQ(step.pending.at(0), static_cast<double>(t % R));
      EXPECT_EQ(step.flush.at(0), t % R == R - 1 ? 1.0 : 0.0);
      EXPECT_EQ(step.cursor.at(2), static_cast<double>((t + 1) % R));
    }
    EXPECT_EQ(step.cursor.at(0), 8.0);
  }
}

TEST_P(ReplayStepBegin, Refusals) {
  Step step;
  step.slot = {0, 1};
  step.start = {3, 3};
  step.valid = {1, 1};
  step.cursor = i32_tensor({0, 4});
  EXPECT_EQ(step.run(GetParam()).message(), "cursor: expected 0 to 3 for slot 1, got 4");
  EXPECT_EQ(step.cursor.at(0), 0.0);
  step.cursor = i32_tensor({0, -1});
  EXPECT_FALSE(step.run(GetParam()).ok());
  step.cursor = i32_tensor({0, 0});
  for (int64_t R : {0, 65}) {
    step.R = R;
    EXPECT_NE(step.run(GetParam()).message().find("ring_length: expected 1 to 64"),
              std::string::npos);
  }
  step.R = 4;
  step.slot = {1, 1};
  EXPECT_NE(step.run(GetParam()).message().find("distinct"), std::string::npos);
  step.slot = {0, 1};
  step.cursor = HostTensor(DType::kI64, {2});
  EXPECT_NE(step.run(GetParam()).message().find("cursor: expected dtype i32"), std::string::npos);
}

}  // namespace
}  // namespace linestate::testing
