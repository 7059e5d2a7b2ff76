#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "linestate/ops/norm.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate::testing {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF16 = DType::kF16;

struct Case {
  HostTensor x, gate, weight, out;
  explicit Case(DType io = kF32, DType out_dtype = kF32, int64_t T = 7, int64_t C = 1536)
      : x(io, {T, C}), gate(io, {T, C}), weight(io, {C}), out(out_dtype, {T, C}) {
    fill_normal(x, 1, 2.0);
    fill_normal(gate, 2, 3.0);
    fill_normal(weight, 3, 0.2, 1.0);
    fill_nan(out);
  }
  GroupRmsNormParams params(int64_t num_groups) {
    GroupRmsNormParams p;
    p.x = x;
    p.gate = gate;
    p.weight = weight;
    p.num_groups = num_groups;
    p.out = out;
    return p;
  }
};

HostTensor oracle(const Case& c, int64_t num_groups, bool gated) {
  const int64_t C = c.x.shape()[1];
  const int64_t n = C / num_groups;
  HostTensor out(DType::kF64, c.x.shape());
  for (int64_t g = 0; g < c.x.shape()[0] * num_groups; ++g) {
    double mean = 0.0;
    for (int64_t i = g * n; i < (g + 1) * n; ++i)
      mean += c.x.at(i) * c.x.at(i) / static_cast<double>(n);
    for (int64_t i = g * n; i < (g + 1) * n; ++i) {
      const double sigmoid = gated ? 0.5 + 0.5 * std::tanh(0.5 * c.gate.at(i)) : 1.0;
      out.set(i, c.x.at(i) / std::sqrt(mean + 1e-5f) * c.weight.at(i % C) * sigmoid);
    }
  }
  return out;
}

class GroupRmsNorm : public ::testing::TestWithParam<const char*> {
 protected:
  void run(const GroupRmsNormParams& params, int threads = 0) {
    ExecContext context;
    context.num_threads = threads;
    const Status status = group_rms_norm(params, context, GetParam());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, GroupRmsNorm, ::testing::Values("cpu", "ref"));

TEST_P(GroupRmsNorm, MatchesDoublePrecision) {
  for (DType io : {kF32, kBF16, kF16}) {
    for (DType out : {kF32, io}) {
      for (int64_t groups : {1, 4, 24, 1536}) {
        for (bool gated : {true, false}) {
          Case c(io, out);
          const HostTensor expected = oracle(c, groups, gated);
          GroupRmsNormParams params = c.params(groups);
          if (!gated) params.gate = {};
          run(params);
          const Difference diff = compare(c.out, expected);
          EXPECT_LE(diff.rel, out == kF32 ? 1e-6 : 1.05 * rounding_error(expected, out))
              << dtype_name(io) << " groups " << groups << ' ' << diff.text();
        }
      }
    }
  }
}

// One group over 2 or 4 ranks: partial sums, a sum over ranks, and each rank's slice of the result.
TEST_P(GroupRmsNorm, RanksTogetherGiveTheWhole) {
  for (int64_t ranks : {2, 4}) {
    Case c;
    run(c.params(1));
    const int64_t T = 7;
    const int64_t local = 1536 / ranks;
    HostTensor total(kF32, {T, 1});
    for (int64_t rank = 0; rank < ranks; ++rank) {
      HostTensor part(kF32, {T, 1});
      RmsSumSqParams sum;
      sum.x = c.x.view().slice(1, rank * local, (rank + 1) * local);
      sum.sum_sq = part;
      ASSERT_TRUE(rms_sum_sq(sum, {}, GetParam()).ok());
      for (int64_t t = 0; t < T; ++t) total.set(t, total.at(t) + part.at(t));
    }
    HostTensor out(kF32, {T, 1536});
    for (int64_t rank = 0; rank < ranks; ++rank) {
      GroupRmsNormParams params = c.params(1);
      params.x = params.x.slice(1, rank * local, (rank + 1) * local);
      params.gate = params.gate.slice(1, rank * local, (rank + 1) * local);
      params.weight = params.weight.slice(0, rank * local, (rank + 1) * local);
      params.sum_sq = total;
      params.group_channels = 1536;
      params.out = out.view().slice(1, rank * local, (rank + 1) * local);
      run(params);
    }
    const Difference diff = compare(out, c.out);
    EXPECT_LE(diff.rel, 1e-6) << diff.text();
  }
}

TEST_P(GroupRmsNorm, GivenSumIsUsedAsItIs) {
  Case c(kF32, kF32, 2, 8);
  fill_constant(c.x, 2.0);
  fill_constant(c.weight, 1.0);
  const HostTensor sum = f32_tensor({16.0f, 64.0f, 256.0f, 1024.0f});
  GroupRmsNormParams params = c.params(2);
  params.gate = {};
  params.sum_sq = sum.view().split(0, 2);
  params.group_channels = 16;
  run(params);
  for (int64_t i = 0; i < 16; ++i) {
    const double mean = sum.at(i / 4) / 16.0;
    EXPECT_NEAR(c.out.at(i), 2.0 / std::sqrt(mean + 1e-5), 3e-7);
  }
}

TEST_P(GroupRmsNorm, InPlaceGivesTheSameBits) {
  Case c(kBF16, kBF16);
  run(c.params(4));
  GroupRmsNormParams params = c.params(4);
  params.out = c.x;
  run(params);
  EXPECT_EQ(bit_difference(c.x, c.out), "");
}

TEST_P(GroupRmsNorm, StridesAndThreadsDoNotMatter) {
  Case c(kBF16, kF32, 7, 96);
  run(c.params(3), 1);
  // Channels-first x and gate, out as columns of a wide buffer.
  HostTensor x(kBF16, {96, 7}), gate(kBF16, {96, 7}), out(kF32, {7, 200});
  for (int64_t t = 0; t < 7; ++t) {
    for (int64_t ch = 0; ch < 96; ++ch) {
      x.set(ch * 7 + t, c.x.at(t * 96 + ch));
      gate.set(ch * 7 + t, c.gate.at(t * 96 + ch));
    }
  }
  fill_nan(out);
  const HostTensor border = out.clone();
  GroupRmsNormParams params = c.params(3);
  params.x = x.view().transpose(0, 1);
  params.gate = gate.view().transpose(0, 1);
  params.out = out.view().slice(1, 50, 146);
  for (int threads : {2, 3}) {
    run(params, threads);
    EXPECT_EQ(bit_difference(params.out, c.out), "");
  }
  EXPECT_EQ(bit_difference(out.view().slice(1, 0, 50), border.view().slice(1, 0, 50)), "");
  EXPECT_EQ(bit_difference(out.view().slice(1, 146, 200), border.view().slice(1, 146, 200)), "");
}

TEST_P(GroupRmsNorm, GateSaturatesWithoutNan) {
  Case c;
  fill_constant(c.gate, -200.0);
  run(c.params(4));
  const Difference diff = compare(c.out, c.out);
  EXPECT_TRUE(diff.finite);
  EXPECT_LE(diff.ref_max, 1e-36);
}

TEST_P(GroupRmsNorm, RaisesNonFiniteWhenAsked) {
  Case c;
  c.x.set(3 * 1536 + 1, std::numeric_limits<double>::quiet_NaN());
  DeviceStatus device_status;
  ExecContext context;
  context.status = &device_status;
  context.check_finite = true;
  ASSERT_TRUE(group_rms_norm(c.params(4), context, GetParam()).ok());
  EXPECT_EQ(device_status.row_of(DeviceFlag::kNonFinite), 3);
}

TEST(GroupRmsNormContract, RefusesByName) {
  HostTensor sum(kF32, {7, 4});
  const auto refuses = [](const char* expected, const auto& change) {
    Case c;
    GroupRmsNormParams params = c.params(4);
    change(params);
    const HostTensor before = c.out.clone();
    const Status status = group_rms_norm(params, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << expected;
    EXPECT_EQ(status.message().substr(0, std::strlen(expected)), expected);
    EXPECT_EQ(bit_difference(c.out, before), "");
    EXPECT_EQ(explain_group_rms_norm(params, {}).problem, status.message());
  };
  using P = GroupRmsNormParams;
  refuses("x: expected shape", [](P& p) { p.x = p.x.split(1, 8); });
  refuses("gate: expected shape [7, 1536]", [](P& p) { p.gate = p.gate.slice(0, 0, 1); });
  refuses("weight: expected shape [1536]", [](P& p) { p.weight = p.weight.slice(0, 0, 384); });
  for (int64_t groups : {0, -1, 5, 3072}) {
    refuses("num_groups: expected a divisor of 1536", [=](P& p) { p.num_groups = groups; });
  }
  refuses("group_channels: expected 384 (or 0) without sum_sq",
          [](P& p) { p.group_channels = 768; });
  refuses("group_channels: expected at least this rank's 384", [&](P& p) {
    p.sum_sq = sum;
    p.group_channels = 383;
  });
  refuses("sum_sq: expected shape [7, 4]", [&](P& p) { p.sum_sq = sum.view().slice(1, 0, 1); });
  refuses("sum_sq: expected dtype f32", [&](P& p) {
    p.sum_sq = sum;
    p.sum_sq.dtype = kBF16;
  });
  refuses("eps: expected", [](P& p) { p.eps = 0.0f; });
  refuses("out: expected the shape of x", [](P& p) { p.out = p.out.slice(1, 0, 4); });
  refuses("out: expected memory apart from gate", [](P& p) { p.gate = p.out; });
  refuses("out: expected memory apart from x",
          [](P& p) { p.x.data = static_cast<char*>(p.out.data) + 4; });
}

}  // namespace
}  // namespace linestate::testing
