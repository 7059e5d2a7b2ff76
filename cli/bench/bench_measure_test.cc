#include "cli/bench/bench_measure.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace linestate::cli {
namespace {

TEST(Percentile, InterpolatesBetweenRanks) {
  EXPECT_DOUBLE_EQ(percentile({3.0}, 0.9), 3.0);
  EXPECT_DOUBLE_EQ(percentile({4.0, 1.0, 3.0, 2.0}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile({5.0, 4.0, 3.0, 2.0, 1.0}, 0.1), 1.4);
  EXPECT_DOUBLE_EQ(percentile({5.0, 4.0, 3.0, 2.0, 1.0}, 1.0), 5.0);
  EXPECT_DOUBLE_EQ(percentile({5.0, 4.0, 3.0, 2.0, 1.0}, 0.0), 1.0);
}

TEST(Summary, IsOfTheSamples) {
  const BenchTiming timing = summarize({2.0, 9.0, 1.0}, 7);
  EXPECT_DOUBLE_EQ(timing.median, 2.0);
  EXPECT_DOUBLE_EQ(timing.least, 1.0);
  EXPECT_DOUBLE_EQ(timing.p10, 1.2);
  EXPECT_DOUBLE_EQ(timing.p90, 7.6);
  EXPECT_EQ(timing.samples, 3);
  EXPECT_EQ(timing.calls_per_sample, 7);
}

class Measure : public ::testing::Test {
 protected:
  std::unique_ptr<BenchDevice> device = std::move(make_bench_device(Device{})).value();
};

TEST_F(Measure, CallsAreNumberedWithoutGapsAndShortOnesAreTimedTogether) {
  int64_t expected = 0;
  bool in_order = true;
  BenchProblem problem;
  problem.run = [&](int64_t call) {
    in_order = in_order && call == expected;
    ++expected;
    return Status();
  };
  const Result<BenchTiming> timing = measure(*device, problem, {0.0, 0.01, 1e-4, 5});
  ASSERT_TRUE(timing.ok());
  EXPECT_TRUE(in_order);
  EXPECT_GT(timing->calls_per_sample, 1);
  EXPECT_GE(timing->samples, 5);
}

TEST_F(Measure, TimesASleepAsOneCall) {
  BenchProblem problem;
  problem.run = [](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    return Status();
  };
  const Result<BenchTiming> timing = measure(*device, problem, {0.0, 0.02, 1e-3, 3});
  ASSERT_TRUE(timing.ok());
  EXPECT_EQ(timing->calls_per_sample, 1);
  EXPECT_GE(timing->least, 4e-3);
  EXPECT_LE(timing->p10, timing->median);
  EXPECT_LE(timing->median, timing->p90);
}

TEST_F(Measure, AnErrorEndsIt) {
  BenchProblem problem;
  problem.run = [](int64_t call) {
    return call < 5 ? Status() : Status(StatusCode::kUnsupported, "no");
  };
  const Result<BenchTiming> timing = measure(*device, problem, {0.0, 0.01, 1e-4, 5});
  ASSERT_FALSE(timing.ok());
  EXPECT_EQ(timing.status().message(), "no");
}

TEST_F(Measure, RoofsArePositiveAndTensorsComeBack) {
  const Result<DeviceRoofs> roofs = device->roofs(1, 0.02);
  ASSERT_TRUE(roofs.ok());
  EXPECT_EQ(roofs->threads, 1);
  EXPECT_GT(roofs->copy_bytes_per_second, 1e6);
  EXPECT_GT(roofs->flops_per_second, 1e6);
  const testing::HostTensor from = testing::i32_tensor({7, -1, 5});
  const Result<BenchTensor> placed = device->place(from);
  ASSERT_TRUE(placed.ok());
  EXPECT_EQ(placed->view.shape[0], 3);
  EXPECT_EQ(static_cast<const int32_t*>(placed->view.data)[2], 5);
  const Result<BenchTensor> normal = device->normal(DType::kF32, {70000});
  ASSERT_TRUE(normal.ok());
  const auto* values = static_cast<const float*>(normal->view.data);
  EXPECT_EQ(values[69999], values[69999 - 65536]);
  EXPECT_NE(values[1], values[2]);
}

TEST(BenchDevice, AGpuThatIsNotThereIsAnError) {
  EXPECT_FALSE(make_bench_device(Device{DeviceType::kCuda, 99}).ok());
}

}  // namespace
}  // namespace linestate::cli
