#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

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
  HostTensor x, z, weight, out;
  Case(DType x_dtype, DType z_dtype, DType weight_dtype, DType out_dtype, int64_t T = 5,
       int64_t HV = 11, int64_t V = 48)
      : x(x_dtype, {T, HV, V}),
        z(z_dtype, {T, HV, V}),
        weight(weight_dtype, {V}),
        out(out_dtype, {T, HV, V}) {
    fill_normal(x, 1, 2.0);
    fill_normal(z, 2, 3.0);
    fill_normal(weight, 3, 0.2, 1.0);
    fill_nan(out);
  }
  GatedRmsNormParams params() {
    GatedRmsNormParams p;
    p.x = x;
    p.z = z;
    p.weight = weight;
    p.out = out;
    return p;
  }
};

HostTensor oracle(const Case& c, double eps) {
  const int64_t V = c.x.shape()[2];
  HostTensor out(DType::kF64, c.x.shape());
  for (int64_t head = 0; head < c.x.num_elements() / V; ++head) {
    double mean = 0.0;
    for (int64_t v = 0; v < V; ++v) mean += std::pow(c.x.at(head * V + v), 2) / V;
    for (int64_t v = 0; v < V; ++v) {
      const int64_t i = head * V + v;
      const double sigmoid = 0.5 + 0.5 * std::tanh(0.5 * c.z.at(i));
      out.set(i, c.x.at(i) / std::sqrt(mean + eps) * c.weight.at(v) * sigmoid);
    }
  }
  return out;
}

class GatedRmsNorm : public ::testing::TestWithParam<const char*> {
 protected:
  void run(const GatedRmsNormParams& params, int threads = 0) {
    ExecContext context;
    context.num_threads = threads;
    const Status status = gated_rms_norm(params, context, GetParam());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, GatedRmsNorm, ::testing::Values("cpu", "ref"));

TEST_P(GatedRmsNorm, MatchesDoublePrecision) {
  for (DType io : {kF32, kBF16, kF16}) {
    for (DType weight : {kF32, kBF16}) {
      for (DType out : {kF32, io}) {
        for (int64_t V : {1, 16, 100, 256, 300}) {
          Case c(io, weight == kF32 ? io : kF32, weight, out, 3, 11, V);
          const HostTensor expected = oracle(c, 1e-5f);
          run(c.params());
          const Difference diff = compare(c.out, expected);
          const double tolerance = out == kF32 ? 1e-6 : 1.05 * rounding_error(expected, out);
          EXPECT_LE(diff.rel, tolerance) << dtype_name(io) << " V " << V << ' ' << diff.text();
        }
      }
    }
  }
}

// x = 3 everywhere: the norm makes it 3 / sqrt(9 + eps).
TEST_P(GatedRmsNorm, ClosedFormAndEps) {
  Case c(kF32, kF32, kF32, kF32);
  fill_constant(c.x, 3.0);
  fill_constant(c.z, 0.0);
  fill_constant(c.weight, 4.0);
  GatedRmsNormParams params = c.params();
  params.eps = 7.0f;
  run(params);
  for (int64_t i = 0; i < c.out.num_elements(); ++i) EXPECT_NEAR(c.out.at(i), 1.5, 2e-7);
  fill_constant(c.x, 0.0);
  run(params);
  EXPECT_EQ(nonzero(c.out), "");
}

TEST_P(GatedRmsNorm, GateSaturatesWithoutNan) {
  Case c(kF32, kF32, kF32, kF32);
  fill_constant(c.x, 1.0);
  fill_constant(c.weight, 1.0);
  const double logits[4] = {-200.0, 200.0, -std::numeric_limits<double>::infinity(), 3e38};
  for (int64_t i = 0; i < 4; ++i) c.z.set(i, logits[i]);
  run(c.params());
  EXPECT_NEAR(c.out.at(0), 0.0, 1e-37);
  EXPECT_NEAR(c.out.at(1), 1.0, 1e-5);
  EXPECT_EQ(c.out.at(2), 0.0);
  EXPECT_NEAR(c.out.at(3), 1.0, 1e-5);
  EXPECT_TRUE(compare(c.out, c.out).finite);
}

TEST_P(GatedRmsNorm, InPlaceGivesTheSameBits) {
  Case c(kBF16, kF32, kF32, kBF16, 5, 11, 300);
  run(c.params());
  GatedRmsNormParams params = c.params();
  params.out = c.x;
  run(params);
  EXPECT_EQ(bit_difference(c.x, c.out), "");
}

TEST_P(GatedRmsNorm, StridesThreadsAndNeighboursDoNotMatter) {
  Case c(kBF16, kBF16, kF32, kF32);
  run(c.params(), 1);
  // z is a slice of a wide buffer, x is head-major, out keeps a border, weight runs backwards.
  HostTensor wide_z(kBF16, {5, 11, 100});
  HostTensor x(kBF16, {11, 5, 48});
  HostTensor out(kF32, {5, 13, 50});
  HostTensor weight(kF32, {48});
  fill_nan(wide_z);
  fill_nan(out);
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t h = 0; h < 11; ++h) {
      for (int64_t v = 0; v < 48; ++v) {
        wide_z.set((t * 11 + h) * 100 + 40 + v, c.z.at((t * 11 + h) * 48 + v));
        x.set((h * 5 + t) * 48 + v, c.x.at((t * 11 + h) * 48 + v));
        weight.set(47 - v, c.weight.at(v));
      }
    }
  }
  const HostTensor border = out.clone();
  GatedRmsNormParams params = c.params();
  params.z = wide_z.view().slice(2, 40, 88);
  params.x = x.view().transpose(0, 1);
  params.out = out.view().slice(1, 1, 12).slice(2, 1, 49);
  params.weight = weight.view().slice(0, 47, 48);
  params.weight.shape[0] = 48;
  params.weight.stride[0] = -1;
  for (int threads : {2, 3}) {
    run(params, threads);
    EXPECT_EQ(bit_difference(params.out, c.out), "");
  }
  EXPECT_EQ(bit_difference(out.view().slice(1, 0, 1), border.view().slice(1, 0, 1)), "");
  EXPECT_EQ(bit_difference(out.view().slice(2, 49, 50), border.view().slice(2, 49, 50)), "");
  // One token alone.
  HostTensor alone(kF32, {1, 11, 48});
  params = c.params();
  params.x = params.x.slice(0, 3, 4);
  params.z = params.z.slice(0, 3, 4);
  params.out = alone;
  run(params);
  EXPECT_EQ(bit_difference(alone, c.out.view().slice(0, 3, 4)), "");
}

TEST_P(GatedRmsNorm, NoTokens) {
  Case c(kF32, kF32, kF32, kF32);
  GatedRmsNormParams params = c.params();
  const HostTensor before = c.out.clone();
  params.x = params.x.slice(0, 0, 0);
  params.z = params.z.slice(0, 0, 0);
  params.out = params.out.slice(0, 0, 0);
  run(params);
  EXPECT_EQ(bit_difference(c.out, before), "");
}

TEST_P(GatedRmsNorm, RaisesNonFiniteWhenAsked) {
  Case c(kF32, kF32, kF32, kF32);
  c.z.set(2 * 11 * 48 + 7, std::numeric_limits<double>::quiet_NaN());
  DeviceStatus device_status;
  ExecContext context;
  context.status = &device_status;
  context.check_finite = true;
  ASSERT_TRUE(gated_rms_norm(c.params(), context, GetParam()).ok());
  EXPECT_EQ(device_status.row_of(DeviceFlag::kNonFinite), 2);
}

TEST(GatedRmsNormContract, RefusesByName) {
  const auto refuses = [](const char* expected, const auto& change) {
    Case c(kF32, kF32, kF32, kF32);
    GatedRmsNormParams params = c.params();
    change(params);
    const HostTensor before = c.out.clone();
    const Status status = gated_rms_norm(params, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << expected;
    EXPECT_EQ(status.message().substr(0, std::strlen(expected)), expected);
    EXPECT_EQ(bit_difference(c.out, before), "");
    EXPECT_EQ(explain_gated_rms_norm(params, {}).problem, status.message());
  };
  using P = GatedRmsNormParams;
  refuses("x: expected shape [any, any, any]", [](P& p) { p.x = p.x.select(0, 0); });
  refuses("x: expected dtype", [](P& p) { p.x.dtype = DType::kI32; });
  refuses("z: expected shape [5, 11, 48]", [](P& p) { p.z = p.z.slice(1, 0, 1); });
  refuses("z: expected shape", [](P& p) { p.z = {}; });
  refuses("weight: expected shape [48]", [](P& p) { p.weight = p.weight.slice(0, 0, 47); });
  for (float eps : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()}) {
    refuses("eps: expected a finite value > 0", [eps](P& p) { p.eps = eps; });
  }
  refuses("out: expected the shape of x", [](P& p) { p.out = p.out.slice(0, 0, 4); });
  refuses("out: expected strides", [](P& p) { p.out.stride[0] = 0; });
  refuses("out: expected memory apart from x", [](P& p) {
    p.out.data = const_cast<void*>(p.x.data);
    p.out = p.out.transpose(0, 1);
    p.out.shape = p.x.shape;
    p.out.stride = {48, 240, 1};
  });
  refuses("out: expected memory apart from x",
          [](P& p) { p.out.data = static_cast<char*>(const_cast<void*>(p.x.data)) - 4; });
  refuses("out: expected memory apart from z", [](P& p) { p.z = p.out; });
  refuses("out: expected memory apart from weight", [](P& p) { p.weight.data = p.out.data; });
}

TEST(GatedRmsNormContract, Explains) {
  Case c(kF32, kF32, kF32, kF32);
  EXPECT_EQ(explain_gated_rms_norm(c.params(), {}).kernel, "cpu");
  EXPECT_EQ(gated_rms_norm(c.params(), {}, "fast").code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace linestate::testing
