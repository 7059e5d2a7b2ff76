#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "linestate/ops/causal_conv1d.h"
#include "ops/causal_conv1d/conv_case.h"
#include "testing/compare.h"
#include "testing/sparse_memory.h"

namespace linestate::testing {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF16 = DType::kF16;

Row decode(int32_t slot, int64_t start = 64, int32_t num_valid = -1) {
  return {slot, RowKind::kDecode, start, 1, num_valid, -1};
}

// 40 rows over 64 slots: live ones in a scattered order, some fresh, padded or without a token.
std::vector<Row> many_rows() {
  std::vector<Row> rows;
  for (int32_t n = 0; n < 40; ++n) {
    Row row = decode((n * 27 + 5) % 64);
    if (n % 7 == 3) row.start = 0;
    if (n % 11 == 4) row.slot = n % 2 == 0 ? -1 : 64 + n;
    if (n % 13 == 6) row.num_valid = 0;
    rows.push_back(row);
  }
  return rows;
}

class CausalConv1dUpdate : public ::testing::TestWithParam<const char*> {
 protected:
  void run(const CausalConv1dParams& params, int threads = 0) {
    ExecContext context;
    context.num_threads = threads;
    const Status status = causal_conv1d_update(params, context, GetParam());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, CausalConv1dUpdate, ::testing::Values("cpu", "ref"));

TEST_P(CausalConv1dUpdate, MatchesDoublePrecision) {
  for (int64_t width : {2, 3, 4}) {
    for (DType x : {kF32, kBF16, kF16}) {
      for (DType weight : {kF32, kBF16}) {
        ConvShape s;
        s.slots = 64;
        s.width = width;
        s.x = x;
        s.weight = weight;
        s.window = weight == kF32 ? x : kF32;
        s.out = weight == kF32 ? kF32 : x;
        s.activation = weight == kF32 ? Activation::kSilu : Activation::kNone;
        ConvCase c(s, many_rows());
        const ConvExpected expected = conv_oracle(c);
        run(c.params());
        const Difference diff = compare(c.out, expected.out);
        EXPECT_LE(diff.rel, conv_tolerance(expected.out, s.out)) << diff.text();
        EXPECT_EQ(bit_difference(c.window, expected.window), "");
      }
    }
  }
}

TEST_P(CausalConv1dUpdate, GivesTheBitsOfPrefillOfOneToken) {
  for (DType x : {kF32, kBF16}) {
    ConvShape s;
    s.slots = 64;
    s.x = x;
    s.weight = x;
    s.window = x;
    ConvCase update(s, many_rows());
    ConvCase prefill(s, many_rows());
    run(update.params());
    const Status status = causal_conv1d_prefill(prefill.params(), {}, GetParam());
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(bit_difference(update.out, prefill.out), "");
    EXPECT_EQ(bit_difference(update.window, prefill.window), "");
  }
}

TEST_P(CausalConv1dUpdate, TokenByTokenIsThePrefill) {
  ConvShape s;
  s.x = kBF16;
  s.window = kBF16;
  ConvCase whole(s, {{6, RowKind::kExtend, 0, 20, -1, -1}});
  ConvCase steps(s, {{6, RowKind::kExtend, 0, 20, -1, -1}});
  ASSERT_TRUE(causal_conv1d_prefill(whole.params(), {}, GetParam()).ok());
  const HostTensor slot = i32_tensor({6});
  for (int64_t t = 0; t < 20; ++t) {
    CausalConv1dParams params = steps.params();
    const HostTensor start = i64_tensor({t});
    params.rows = {slot, {}, start, {}};
    params.x = params.x.slice(0, t, t + 1);
    params.out = params.out.slice(0, t, t + 1);
    run(params);
  }
  EXPECT_EQ(bit_difference(steps.out, whole.out), "");
  EXPECT_EQ(bit_difference(steps.window, whole.window), "");
}

TEST_P(CausalConv1dUpdate, WithoutStartEveryRowResumes) {
  ConvCase c({}, {decode(3), decode(1)});
  const ConvExpected expected = conv_oracle(c);
  CausalConv1dParams params = c.params();
  params.rows.start = {};
  params.rows.num_valid = {};
  params.rows.query_start_loc = {};
  run(params);
  EXPECT_LE(compare(c.out, expected.out).rel, 1e-6);
  EXPECT_EQ(bit_difference(c.window, expected.window), "");
}

TEST_P(CausalConv1dUpdate, PaddingRowsGiveZerosAndTouchNothing) {
  for (int32_t pad : {-1, 8, std::numeric_limits<int32_t>::min()}) {
    ConvCase c({}, {decode(3), decode(pad), decode(pad, 0), decode(pad)});
    fill_nan(c.x.view().slice(0, 1, 4));
    const ConvExpected expected = conv_oracle(c);
    run(c.params());
    EXPECT_EQ(nonzero(c.out.view().slice(0, 1, 4)), "");
    EXPECT_EQ(bit_difference(c.window, expected.window), "");
    EXPECT_LE(compare(c.out, expected.out).rel, 1e-6);
  }
}

TEST_P(CausalConv1dUpdate, FreshRowsNeverReadTheSlot) {
  ConvCase c({}, {decode(2, 0)});
  ConvCase clean({}, {decode(2, 0)});
  fill_nan(c.window.view().slice(0, 2, 3));
  fill_constant(clean.window.view().slice(0, 2, 3), 0.0);
  run(c.params());
  run(clean.params());
  EXPECT_EQ(bit_difference(c.out, clean.out), "");
  EXPECT_EQ(bit_difference(c.window, clean.window), "");
  EXPECT_TRUE(compare(c.out, clean.out).finite);
}

TEST_P(CausalConv1dUpdate, ThreadsAndBatchMatesDoNotMatter) {
  ConvShape s;
  s.channels = 700;
  s.slots = 64;
  ConvCase one(s, many_rows());
  run(one.params(), 1);
  for (int threads : {2, 3}) {
    ConvCase many(s, many_rows());
    run(many.params(), threads);
    EXPECT_EQ(bit_difference(many.out, one.out), "");
    EXPECT_EQ(bit_difference(many.window, one.window), "");
  }
  for (int64_t n : {0, 3, 17, 39}) {
    ConvCase alone(s, many_rows());
    CausalConv1dParams params = alone.params();
    params.rows.slot = params.rows.slot.slice(0, n, n + 1);
    params.rows.start = params.rows.start.slice(0, n, n + 1);
    params.rows.num_valid = params.rows.num_valid.slice(0, n, n + 1);
    params.x = params.x.slice(0, n, n + 1);
    params.out = params.out.slice(0, n, n + 1);
    run(params);
    EXPECT_EQ(bit_difference(params.out, one.out.view().slice(0, n, n + 1)), "");
    const int64_t slot = many_rows()[static_cast<size_t>(n)].slot;
    if (slot < 0 || slot >= 64) continue;
    EXPECT_EQ(bit_difference(alone.window.view().slice(0, slot, slot + 1),
                             one.window.view().slice(0, slot, slot + 1)),
              "");
  }
}

// A channels-first input, a channels-last window inside a page, slot offsets past 2^31 elements.
TEST_P(CausalConv1dUpdate, AnyStridesAndBigPools) {
  ConvShape s;
  s.x = kBF16;
  s.window = kBF16;
  s.slots = 4;
  ConvCase c(s, {decode(3), decode(1, 0), decode(0)});
  const ConvExpected expected = conv_oracle(c);
  const SparseMemory pool(4 * int64_t{750'000'000} * 2);
  CausalConv1dParams params = c.params();
  params.window.data = pool.data();
  params.window.stride = {int64_t{750'000'000}, 1, 1000};
  for (int64_t slot = 0; slot < s.slots; ++slot) {
    for (int64_t ch = 0; ch < s.channels; ++ch) {
      for (int64_t j = 0; j < 3; ++j) {
        std::memcpy(static_cast<uint16_t*>(pool.data()) + slot * 750'000'000 + j * 1000 + ch,
                    static_cast<uint16_t*>(c.window.data()) + (slot * s.channels + ch) * 3 + j, 2);
      }
    }
  }
  HostTensor x(kBF16, {s.channels, 3});
  for (int64_t n = 0; n < 3; ++n) {
    for (int64_t ch = 0; ch < s.channels; ++ch) x.set(ch * 3 + n, c.x.at(n * s.channels + ch));
  }
  params.x = x.view().transpose(0, 1);
  HostTensor out(kF32, {s.channels, 3});
  params.out = out.view().transpose(0, 1);
  run(params);
  EXPECT_LE(compare(params.out, expected.out).rel, 1e-6);
  EXPECT_EQ(bit_difference(params.window, expected.window), "");
}

TEST_P(CausalConv1dUpdate, RaisesFlags) {
  ConvCase c({}, {decode(0), decode(8), decode(2)});
  c.x.set(2 * c.shape.channels, std::numeric_limits<double>::infinity());
  DeviceStatus device_status;
  ExecContext context;
  context.status = &device_status;
  context.check_finite = true;
  ASSERT_TRUE(causal_conv1d_update(c.params(), context, GetParam()).ok());
  EXPECT_EQ(device_status.row_of(DeviceFlag::kSlotOutOfRange), 1);
  EXPECT_EQ(device_status.row_of(DeviceFlag::kNonFinite), 2);
}

TEST(CausalConv1dUpdateContract, RefusesByName) {
  ConvCase c({}, {decode(1), decode(2)});
  const HostTensor before = c.window.clone();
  CausalConv1dParams params = c.params();
  params.rows.slot = c.slot.view().slice(0, 0, 1);
  EXPECT_EQ(causal_conv1d_update(params, {}).message().substr(0, 24), "rows.slot: expected shap");
  params = c.params();
  c.slot.set(0, 2);
  EXPECT_EQ(causal_conv1d_update(params, {}).message(),
            "rows.slot: expected distinct live slots, got slot 2 again at row 1");
  c.slot.set(0, 1);
  params.weight = params.weight.slice(1, 0, 1);
  EXPECT_EQ(causal_conv1d_update(params, {}).message(),
            "weight: expected a width of 2 to 4, got 1");
  params = c.params();
  params.out.data = params.window.data;
  EXPECT_EQ(causal_conv1d_update(params, {}).message(),
            "out: expected memory apart from window, got overlapping ranges");
  EXPECT_EQ(bit_difference(c.window, before), "");
}

TEST(CausalConv1dUpdateContract, ExplainsAndNamesKernels) {
  ConvCase c({}, {decode(1)});
  EXPECT_EQ(explain_causal_conv1d_update(c.params(), {}).kernel, "cpu");
  EXPECT_EQ(explain_causal_conv1d_update(c.params(), {}, "ref").kernel, "ref");
  EXPECT_EQ(*causal_conv1d_update_workspace_bytes(c.params(), {}), 0);
  EXPECT_EQ(causal_conv1d_update(c.params(), {}, "fast").code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace linestate::testing
