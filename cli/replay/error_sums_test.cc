#include "cli/replay/error_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate::cli {
namespace {

using testing::HostTensor;

TEST(ErrorSums, AgreesWithCompareAndRoundingError) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    HostTensor reference(DType::kF32, {5, 3, 16});
    testing::fill_normal(reference, 1);
    HostTensor actual = testing::cast_of(reference, dtype);
    actual.set(2 * 48 + 16 + 3, 7.0);  // token 2, head 1
    ErrorSums sums(3);
    add_output_errors(actual, reference, sums);
    const HeadSums total = sums.total();
    EXPECT_NEAR(relative_rms(total.error, total.norm), testing::compare(actual, reference).rel,
                1e-12);
    EXPECT_NEAR(relative_rms(total.rounding, total.norm), testing::rounding_error(reference, dtype),
                1e-12);
    EXPECT_EQ(sums.worst_head(), 1);
  }
}

TEST(ErrorSums, StatesPerHead) {
  HostTensor reference(DType::kBF16, {2, 4, 8});
  testing::fill_normal(reference, 2);
  HostTensor actual = reference.clone();
  ErrorSums sums(2);
  add_state_errors(actual, reference, sums);
  EXPECT_EQ(sums.total().error, 0.0);
  actual.set(40, actual.at(40) + 1.0);
  add_state_errors(actual, reference, sums);
  EXPECT_NEAR(sums.heads[1].error, 1.0, 1e-2);
  EXPECT_EQ(sums.heads[0].error, 0.0);
}

TEST(ErrorSums, NothingPassesByAccident) {
  EXPECT_EQ(relative_rms(0.0, 0.0), 0.0);
  EXPECT_TRUE(std::isinf(relative_rms(1e-300, 0.0)));
  EXPECT_TRUE(std::isnan(relative_rms(std::nan(""), 1.0)));
  HostTensor reference(DType::kF32, {1, 2, 16});
  HostTensor actual(DType::kBF16, {1, 2, 16});
  actual.set(20, std::numeric_limits<double>::quiet_NaN());
  ErrorSums sums(2);
  add_output_errors(actual, reference, sums);
  EXPECT_TRUE(std::isnan(sums.total().error));
  EXPECT_EQ(sums.worst_head(), 1);
}

}  // namespace
}  // namespace linestate::cli
