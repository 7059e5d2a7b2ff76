// 16-bit outputs are the rounding of the exact result: the f32 and the f64 kernel give equal bits.
#include <gtest/gtest.h>

#include "linestate/ops/causal_conv1d.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate {
namespace {

using testing::HostTensor;

HostTensor run(const char* kernel, DType dtype, int64_t width, Activation activation,
               double weight_scale) {
  constexpr int64_t kTokens = 400;
  constexpr int64_t kChannels = 272;
  HostTensor x(dtype, {kTokens, kChannels});
  HostTensor weight(DType::kF32, {kChannels, width});
  HostTensor bias(DType::kF32, {kChannels});
  HostTensor window(dtype, {1, kChannels, width - 1});
  HostTensor out(dtype, {kTokens, kChannels});
  testing::fill_normal(x, 1);
  testing::fill_normal(weight, 2, weight_scale);
  testing::fill_normal(bias, 3, weight_scale);
  testing::fill_normal(window, 4);
  testing::fill_nan(out);
  const HostTensor slot = testing::i32_tensor({0});
  const HostTensor offsets = testing::i32_tensor({0, kTokens});
  const HostTensor start = testing::i32_tensor({7});
  CausalConv1dParams p;
  p.rows.slot = slot;
  p.rows.query_start_loc = offsets;
  p.rows.start = start;
  p.x = x;
  p.weight = weight;
  p.bias = bias;
  p.activation = activation;
  p.window = window;
  p.out = out;
  EXPECT_TRUE(causal_conv1d_prefill(p, {}, kernel).ok());
  return out;
}

TEST(ConvRounding, NarrowOutputsHaveTheSameBitsInEveryKernel) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t width : {2, 3, 4}) {
      for (Activation activation : {Activation::kNone, Activation::kSilu}) {
        for (double scale : {0.5, 30.0}) {  // 30: SiLU far from zero on both sides
          const HostTensor cpu = run("cpu", dtype, width, activation, scale);
          const HostTensor ref = run("ref", dtype, width, activation, scale);
          EXPECT_EQ(testing::bit_difference(cpu, ref), "")
              << dtype_name(dtype) << ", width " << width << ", scale " << scale;
        }
      }
    }
  }
}

}  // namespace
}  // namespace linestate
