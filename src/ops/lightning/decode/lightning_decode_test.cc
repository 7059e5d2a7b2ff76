#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "testing/lightning_case.h"

namespace linestate::testing {
namespace {

Status decode(LightningCase& test, const char* kernel, int threads = 1) {
  return run_lightning(lightning_decode, lightning_decode_workspace_bytes, test, kernel, threads);
}

class LightningDecode : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kernels, LightningDecode, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(LightningDecode, MatchesTheRecurrenceForEveryHeadDim) {
  for (int64_t dim : {16, 64, 80, 128, 256}) {
    SCOPED_TRACE(dim);
    LightningShape shape;
    shape.rows = {{3, 0, 1}, {0, 64, 1}, {5, 5, 1}};
    shape.dim = dim;
    LightningCase test(shape);
    const LightningExpected expected = expect_lightning(test);
    ASSERT_EQ(decode(test, GetParam()).to_string(), "ok");
    EXPECT_EQ(disagreement(test, expected), "");
  }
}

TEST_P(LightningDecode, EveryDtypeOfInputOutputAndState) {
  const DType all[] = {DType::kF32, DType::kBF16, DType::kF16};
  for (DType io : all) {
    for (DType out : all) {
      for (DType state : all) {
        SCOPED_TRACE(std::string(dtype_name(io)) + " " + std::string(dtype_name(out)) + " " +
                     std::string(dtype_name(state)));
        LightningShape shape;
        shape.rows = {{1, 0, 1}, {2, 10, 1}, {0, 10, 1}};
        shape.dim = 32;
        shape.slots = 3;
        shape.io = io;
        shape.out = out;
        shape.state = state;
        LightningCase test(shape);
        const LightningExpected expected = expect_lightning(test);
        ASSERT_EQ(decode(test, GetParam()).to_string(), "ok");
        EXPECT_EQ(disagreement(test, expected), "");
      }
    }
  }
}

// Slot s holds s + 1 everywhere and k is zero: o = scale * lambda * (s + 1) * sum(q).
void expect_slot_vector_used(const std::vector<int32_t>& slots, int64_t pool, const char* kernel) {
  LightningShape shape;
  for (int32_t slot : slots) shape.rows.push_back({slot, 1, 1});
  shape.heads = 8;
  shape.dim = 128;
  shape.slots = pool;
  LightningCase test(shape);
  fill_constant(test.k, 0.0);
  fill_uniform(test.q, 5, 0.5, 1.0);  // no cancellation in sum(q)
  for (int64_t s = 0; s < pool; ++s) {
    fill_constant(test.state.view().slice(0, s, s + 1), static_cast<double>(s + 1));
  }
  const HostTensor before = test.state.clone();
  ASSERT_EQ(decode(test, kernel).to_string(), "ok");
  std::vector<bool> live(static_cast<size_t>(pool), false);
  for (size_t n = 0; n < slots.size(); ++n) {
    live[static_cast<size_t>(slots[n])] = true;
    for (int64_t h = 0; h < 8; ++h) {
      const double lambda = std::exp(-test.slopes.at(h));
      const int64_t at = (static_cast<int64_t>(n) * 8 + h) * 128;
      double sum = 0.0;
      for (int64_t d = 0; d < 128; ++d) sum += test.q.at(at + d);
      const double want = test.params.scale * lambda * (slots[n] + 1) * sum;
      const double state = lambda * (slots[n] + 1);
      for (int64_t d = 0; d < 128; ++d) {
        ASSERT_NEAR(test.out.at(at + d), want, 2e-6 * want);
        ASSERT_NEAR(test.state.at(((int64_t{8} * slots[n] + h) * 128 + d) * 128 + 3), state,
                    1e-6 * state);
      }
    }
  }
  for (int64_t s = 0; s < pool; ++s) {
    if (live[static_cast<size_t>(s)]) continue;
    EXPECT_EQ(bit_difference(slot_of(test.state, s), slot_of(before, s)), "") << s;
  }
}

TEST_P(LightningDecode, RowsUseTheirOwnSlots) {
  expect_slot_vector_used({2, 0, 5, 1}, 6, GetParam());
  expect_slot_vector_used({1, 5, 0, 2}, 6, GetParam());
  expect_slot_vector_used({41}, 64, GetParam());
}

TEST_P(LightningDecode, FreshRowsOnDirtySlotsAndResumingWithoutStart) {
  LightningShape shape;
  shape.rows = {{1, 0, 1}, {2, 0, 1, 0}, {3, 9, 1}};
  LightningCase clean(shape);
  LightningCase dirty(shape);
  for (int64_t slot : {1, 2}) fill_nan(dirty.state.view().slice(0, slot, slot + 1));
  const LightningExpected expected = expect_lightning(clean);
  ASSERT_EQ(decode(clean, GetParam()).to_string(), "ok");
  ASSERT_EQ(decode(dirty, GetParam()).to_string(), "ok");
  EXPECT_EQ(disagreement(clean, expected), "");
  EXPECT_EQ(bit_difference(clean.out.view(), dirty.out.view()), "");
  EXPECT_EQ(bit_difference(clean.state.view(), dirty.state.view()), "");
  EXPECT_EQ(nonzero(slot_of(dirty.state, 2)), "");

  shape.rows = {{1, 4, 1}, {2, 4, 1}};
  LightningCase resumed(shape);
  LightningCase implied(shape);
  implied.params.rows.start = {};
  implied.params.rows.num_valid = {};
  implied.params.rows.query_start_loc = {};
  ASSERT_EQ(decode(resumed, GetParam()).to_string(), "ok");
  ASSERT_EQ(decode(implied, GetParam()).to_string(), "ok");
  EXPECT_EQ(bit_difference(resumed.out.view(), implied.out.view()), "");
  EXPECT_EQ(bit_difference(resumed.state.view(), implied.state.view()), "");
}

TEST_P(LightningDecode, PaddingRowsTouchNothing) {
  LightningShape shape;
  shape.rows = {{-1, 0, 1}, {4, 7, 1}, {6, 7, 1}, {2, 7, 1, 0}, {-7, 3, 1}};
  LightningCase test(shape);
  const LightningExpected expected = expect_lightning(test);
  for (HostTensor* tensor : {&test.q, &test.k, &test.v}) {
    fill_nan(tensor->view().slice(0, 0, 1));
    fill_nan(tensor->view().slice(0, 2, 5));
  }
  for (int64_t unused : {0, 1, 2, 3, 5}) fill_nan(test.state.view().slice(0, unused, unused + 1));
  const HostTensor before = test.state.clone();
  ASSERT_EQ(decode(test, GetParam()).to_string(), "ok");
  EXPECT_LE(compare(test.out.view().slice(0, 1, 2), expected.out.view().slice(0, 1, 2)).rel, 1e-6);
  EXPECT_LE(compare(slot_of(test.state, 4), slot_of(expected.state, 4)).rel, 5e-7);
  EXPECT_EQ(nonzero(test.out.view().slice(0, 0, 1)), "");
  EXPECT_EQ(nonzero(test.out.view().slice(0, 2, 5)), "");
  for (int64_t slot : {0, 1, 2, 3, 5}) {
    EXPECT_EQ(bit_difference(slot_of(test.state, slot), slot_of(before, slot)), "") << slot;
  }
  EXPECT_EQ(test.status.row_of(DeviceFlag::kSlotOutOfRange), 2);
}

TEST_P(LightningDecode, BatchMatesAndThreadsDoNotMatter) {
  LightningShape shape;
  for (int32_t i = 0; i < 6; ++i) shape.rows.push_back({5 - i, 3 + i, 1});
  LightningCase one(shape);
  ASSERT_EQ(decode(one, GetParam(), 1).to_string(), "ok");
  for (int threads : {2, 3}) {
    LightningCase more(shape);
    ASSERT_EQ(decode(more, GetParam(), threads).to_string(), "ok");
    EXPECT_EQ(bit_difference(more.out.view(), one.out.view()), "");
    EXPECT_EQ(bit_difference(more.state.view(), one.state.view()), "");
  }
  LightningCase single(shape);
  for (int64_t n = 5; n >= 0; --n) {
    LightningShape row_shape = shape;
    row_shape.rows = {shape.rows[static_cast<size_t>(n)]};
    LightningCase row(row_shape);
    row.params.q = single.q.view().slice(0, n, n + 1);
    row.params.k = single.k.view().slice(0, n, n + 1);
    row.params.v = single.v.view().slice(0, n, n + 1);
    row.params.out = single.out.view().slice(0, n, n + 1);
    row.params.state = single.state;
    ASSERT_EQ(decode(row, GetParam()).to_string(), "ok");
  }
  EXPECT_EQ(bit_difference(single.out.view(), one.out.view()), "");
  EXPECT_EQ(bit_difference(single.state.view(), one.state.view()), "");
}

TEST_P(LightningDecode, SteepAndFlatSlopes) {
  LightningShape shape;
  shape.rows = {{0, 64, 1}, {1, 2, 1}};
  shape.heads = 4;
  LightningCase test(shape);
  test.slopes = f32_tensor({0.917f, 200.0f, 0.0f, 4e-8f});
  test.bind();
  const LightningExpected expected = expect_lightning(test);
  ASSERT_EQ(decode(test, GetParam()).to_string(), "ok");
  EXPECT_EQ(disagreement(test, expected), "");
}

TEST_P(LightningDecode, ThousandsOfSlowStepsStayClose) {
  LightningShape shape;
  shape.rows = {{0, 0, 4000}};
  shape.heads = 1;
  shape.dim = 16;
  shape.slots = 1;
  LightningCase all(shape);
  all.slopes = f32_tensor({1e-4f});
  all.bind();
  const LightningExpected expected = expect_lightning(all);
  shape.rows = {{0, 0, 1}};
  LightningCase step(shape);
  step.params.slopes = all.slopes;
  for (int64_t t = 0; t < 4000; ++t) {
    step.params.q = all.q.view().slice(0, t, t + 1);
    step.params.k = all.k.view().slice(0, t, t + 1);
    step.params.v = all.v.view().slice(0, t, t + 1);
    if (t == 1) step.start.set(0, 1.0);
    ASSERT_EQ(decode(step, GetParam()).to_string(), "ok");
  }
  const Difference diff = compare(step.state.view(), expected.state.view());
  EXPECT_LE(diff.rel, 5e-6) << diff.text();
}

// Whatever bits it has: rounding must neither carry out of a NaN nor cut its payload off.
TEST_P(LightningDecode, NanStaysNanInEveryPool) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(dtype_name(dtype));
    LightningShape shape;
    shape.rows = {{1, 3, 1}};
    shape.dim = 64;
    shape.state = dtype;
    LightningCase test(shape);
    const int64_t first = int64_t{1} * test.state.shape()[1] * 64 * 64;  // of head 0
    const uint32_t payloads[] = {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xff80ffffu, 0x7fbfffffu};
    for (size_t i = 0; i < 5; ++i) static_cast<uint32_t*>(test.v.data())[i] = payloads[i];
    test.state.set(first + 7 * 64 + 9, std::numeric_limits<double>::quiet_NaN());
    if (dtype == DType::kBF16) {
      static_cast<uint16_t*>(test.state.data())[first + 8 * 64 + 9] = 0x7f81;
      static_cast<uint16_t*>(test.state.data())[first + 9 * 64 + 9] = 0xffff;
    }
    ASSERT_EQ(decode(test, GetParam()).to_string(), "ok");
    const int64_t nan_rows = dtype == DType::kBF16 ? 3 : 1;
    for (int64_t d = 0; d < 64; ++d) {
      for (int64_t e = 0; e < 64; ++e) {
        const bool nan = e < 5 || (e == 9 && d >= 7 && d < 7 + nan_rows);
        ASSERT_EQ(std::isnan(test.state.at(first + d * 64 + e)), nan) << d << " " << e;
      }
    }
  }
}

}  // namespace
}  // namespace linestate::testing
