#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "linestate/ops/norm.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate::testing {
namespace {

class RmsSumSq : public ::testing::TestWithParam<const char*> {
 protected:
  void run(const ConstTensorView& x, const TensorView& sum_sq, int threads = 0) {
    RmsSumSqParams params;
    params.x = x;
    params.sum_sq = sum_sq;
    ExecContext context;
    context.num_threads = threads;
    const Status status = rms_sum_sq(params, context, GetParam());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, RmsSumSq, ::testing::Values("cpu", "ref"));

TEST_P(RmsSumSq, MatchesDoublePrecision) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int64_t n : {1, 3, 16, 17, 255, 257, 2048}) {
      HostTensor x(dtype, {5, 3 * n});
      HostTensor sum(DType::kF32, {5, 3});
      HostTensor expected(DType::kF64, {5, 3});
      fill_normal(x, 4, 2.0, 1.0);
      fill_nan(sum);
      for (int64_t i = 0; i < x.num_elements(); ++i) {
        expected.set(i / n, expected.at(i / n) + x.at(i) * x.at(i));
      }
      run(x, sum);
      const Difference diff = compare(sum, expected);
      EXPECT_LE(diff.rel, 1e-6) << "n " << n << ' ' << diff.text();
    }
  }
}

TEST_P(RmsSumSq, SmallIntegersAreExact) {
  HostTensor x(DType::kBF16, {2, 100});
  for (int64_t i = 0; i < 200; ++i) x.set(i, static_cast<double>(i % 100));
  HostTensor sum(DType::kF32, {2, 2});
  run(x, sum);
  EXPECT_EQ(sum.at(0), 40425.0);   // 0^2 + ... + 49^2
  EXPECT_EQ(sum.at(1), 287925.0);  // 50^2 + ... + 99^2
  EXPECT_EQ(sum.at(2), 40425.0);
}

TEST_P(RmsSumSq, StridesAndThreadsDoNotMatter) {
  HostTensor x(DType::kF32, {9, 64});
  HostTensor sum(DType::kF32, {9, 4});
  fill_normal(x, 9);
  run(x, sum, 1);
  HostTensor columns(DType::kF32, {64, 9});
  for (int64_t t = 0; t < 9; ++t) {
    for (int64_t c = 0; c < 64; ++c) columns.set(c * 9 + t, x.at(t * 64 + c));
  }
  for (int threads : {2, 3}) {
    HostTensor wide(DType::kF32, {4, 20});
    fill_nan(wide);
    const TensorView out = wide.view().slice(1, 3, 12).transpose(0, 1);
    run(columns.view().transpose(0, 1), out, threads);
    EXPECT_EQ(bit_difference(out, sum), "");
    EXPECT_NE(wide.at(2), wide.at(2)) << "border";
    EXPECT_NE(wide.at(12), wide.at(12)) << "border";
  }
}

TEST_P(RmsSumSq, RaisesNonFiniteWhenAsked) {
  HostTensor x(DType::kF32, {3, 8});
  HostTensor sum(DType::kF32, {3, 1});
  x.set(9, std::numeric_limits<double>::infinity());
  RmsSumSqParams params;
  params.x = x;
  params.sum_sq = sum;
  DeviceStatus device_status;
  ExecContext context;
  context.status = &device_status;
  context.check_finite = true;
  ASSERT_TRUE(rms_sum_sq(params, context, GetParam()).ok());
  EXPECT_EQ(device_status.row_of(DeviceFlag::kNonFinite), 1);
}

TEST(RmsSumSqContract, RefusesByName) {
  HostTensor x(DType::kF32, {3, 8});
  HostTensor sum(DType::kF32, {3, 2});
  const auto refuses = [&](const char* expected, const auto& change) {
    RmsSumSqParams params;
    params.x = x;
    params.sum_sq = sum;
    change(params);
    const Status status = rms_sum_sq(params, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << expected;
    EXPECT_EQ(status.message().substr(0, std::strlen(expected)), expected);
    EXPECT_EQ(explain_rms_sum_sq(params, {}).problem, status.message());
  };
  using P = RmsSumSqParams;
  HostTensor three(DType::kF32, {3, 3});
  refuses("x: expected shape", [](P& p) { p.x = p.x.select(0, 0); });
  refuses("x: expected dtype", [](P& p) { p.x.dtype = DType::kI32; });
  refuses("sum_sq: expected shape [3, any]", [](P& p) { p.sum_sq = p.sum_sq.slice(0, 0, 2); });
  refuses("sum_sq: expected a number of groups that divides 8 channels, got 3",
          [&](P& p) { p.sum_sq = three; });
  refuses("sum_sq: expected a number of groups", [](P& p) { p.sum_sq = p.sum_sq.slice(1, 0, 0); });
  refuses("sum_sq: expected dtype f32", [](P& p) { p.sum_sq.dtype = DType::kF16; });
  refuses("sum_sq: expected strides", [](P& p) { p.sum_sq.stride[0] = 1; });
  refuses("sum_sq: expected memory apart from x",
          [](P& p) { p.sum_sq.data = const_cast<void*>(p.x.data); });
}

}  // namespace
}  // namespace linestate::testing
