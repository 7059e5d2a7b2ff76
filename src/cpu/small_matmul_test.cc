#include "cpu/small_matmul.h"

#include <gtest/gtest.h>

#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate {
namespace {

using testing::HostTensor;

TEST(SmallMatmul, IsOneUnfusedChainPerElementAndStaysInside) {
  for (int64_t m : {4, 12}) {
    for (int64_t n : {16, 48, 128}) {
      for (int64_t k : {0, 1, 7, 33, 150, 300}) {
        const int64_t a_pitch = k + 3, b_pitch = n + 5, c_pitch = n + 2;
        HostTensor a(DType::kF32, {m, a_pitch});
        HostTensor b(DType::kF32, {k + 1, b_pitch});
        HostTensor c(DType::kF32, {m, c_pitch});
        testing::fill_normal(a, 1);
        testing::fill_normal(b, 2);
        testing::fill_normal(c, 3);
        HostTensor want = c.clone();
        const float hi = 0.75f, lo = 1e-8f;
        const auto* A = static_cast<const float*>(a.data());
        const auto* B = static_cast<const float*>(b.data());
        auto* C = static_cast<float*>(want.data());
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            volatile float sum = C[i * c_pitch + j] * lo;
            for (int64_t l = 0; l < k; ++l) {
              volatile float product = A[i * a_pitch + l] * B[l * b_pitch + j];
              sum = sum + product;
            }
            volatile float kept = C[i * c_pitch + j] * hi;
            C[i * c_pitch + j] = kept + sum;
          }
        }
        small_matmul(
            {A, B, static_cast<float*>(c.data()), a_pitch, b_pitch, c_pitch, m, n, k, hi, lo});
        EXPECT_EQ(testing::bit_difference(c.view(), want.view()), "") << m << " " << n << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace linestate
