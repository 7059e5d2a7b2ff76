// The row "cuda_sm90" of lightning_prefill against float64 (no golden file has its sizes and
// dtype): the row contract, dtypes, bits, segments, and what it refuses. Calls run through
// MirroredCall: eagerly and from a graph, same bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "linestate/kernel_registry.h"
#include "ops/lightning/prefill/lightning_prefill_kernels.h"
#include "testing/lightning_case.h"
#include "tests/gpu/mirrored_rows_fixture.h"

namespace linestate::testing {
namespace {

constexpr const char* kMirror = "sm90_on_copies";

Status run_sm90(const LightningParams& params, const ExecContext& context, void*) {
  return MirroredCall<LightningParams>(lightning_prefill_table(), params, context, "cuda_sm90")
      .run();
}

class LightningPrefillSm90 : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ExternalKernel<LightningParams> kernel;
    kernel.name = kMirror;
    kernel.device = DeviceType::kCpu;
    kernel.summary = "the cuda_sm90 row on copies of host tensors";
    kernel.run = run_sm90;
    const Status status = register_kernel("lightning_prefill", kernel);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
};

Status prefill(LightningCase& test, const char* kernel = kMirror) {
  return run_lightning(lightning_prefill, lightning_prefill_workspace_bytes, test, kernel);
}

LightningShape served(std::vector<LightningRow> rows, DType out = DType::kBF16) {
  LightningShape shape;
  shape.rows = std::move(rows);
  shape.dim = 128;
  shape.heads = 3;
  shape.slots = 10;
  shape.io = DType::kBF16;
  shape.out = out;
  return shape;
}

std::vector<LightningRow> mixed_rows() {
  return {{2, 0, 300}, {0, 10, 77}, {5, 64, 64},      {1, 0, 0},   {3, 128, 0},
          {-1, 0, 40}, {4, 7, 1},   {6, 0, 200, 130}, {7, 63, 130}};
}

/// Against float64. Outputs: 1.05 times the rounding of their dtype, f32 ones 1e-5; state 2e-5.
std::string judge(LightningCase& test, double f32_limit = 1e-5) {
  const LightningExpected expected = expect_lightning(test);
  const Status status = prefill(test);
  if (!status.ok()) return status.to_string();
  const HostTensor out = cast_of(test.out.view(), DType::kF32);
  const double o = compare(out.view(), expected.out.view()).rel;
  const HostTensor pool = cast_of(test.state.view(), DType::kF32);
  const double state = compare(pool.view(), expected.state.view()).rel;
  const double out_limit = test.shape.out == DType::kF32
                               ? f32_limit
                               : 1.05 * rounding_error(expected.out.view(), test.shape.out);
  const double state_limit = test.shape.state == DType::kF32
                                 ? 2e-5
                                 : 1.05 * rounding_error(expected.state.view(), test.shape.state);
  if (o <= out_limit && state <= state_limit) return "";
  return "out " + std::to_string(o) + ", state " + std::to_string(state);
}

TEST_F(LightningPrefillSm90, RowsAndDtypes) {
  for (const DType out : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const DType state : {DType::kF32, DType::kBF16, DType::kF16}) {
      LightningShape shape = served(mixed_rows(), out);
      shape.state = state;
      shape.capacity = 900;
      LightningCase test(shape);
      EXPECT_EQ(judge(test), "") << dtype_name(out) << ", state " << dtype_name(state);
    }
  }
}

TEST_F(LightningPrefillSm90, SteepAndFlatSlopes) {
  LightningShape shape = served({{0, 64, 200}, {1, 0, 45}}, DType::kF32);
  shape.heads = 4;
  LightningCase test(shape);
  test.slopes = f32_tensor({0.917f, 40.0f, 0.0f, 4e-8f});
  test.bind();
  EXPECT_EQ(judge(test), "");
}

// 33 chunks are two segments, the second 17 chunks; 5 000 tokens are four.
TEST_F(LightningPrefillSm90, SegmentsOfLongRows) {
  for (const int64_t start : {0, 37}) {
    LightningShape shape =
        served({{1, start, 2100}, {0, 3, 70}, {2, start, 1985}, {3, 0, 5000, 4900}}, DType::kF32);
    shape.heads = 1;
    LightningCase test(shape);
    test.slopes = f32_tensor({1e-3f});
    test.bind();
    EXPECT_EQ(judge(test), "") << start;
  }
}

TEST_F(LightningPrefillSm90, FreshRowsAndPlaceholdersDoNotLook) {
  LightningCase clean(served(mixed_rows()));
  LightningCase dirty(served(mixed_rows()));
  for (const int64_t slot : {2, 1, 6}) {  // fresh rows
    fill_nan(dirty.state.view().slice(0, slot, slot + 1));
  }
  const int64_t padding = clean.token_of(5);
  const int64_t placeholders = clean.token_of(7) + 130;
  for (HostTensor* tensor : {&dirty.q, &dirty.k, &dirty.v}) {
    fill_nan(tensor->view().slice(0, padding, padding + 40));
    fill_nan(tensor->view().slice(0, placeholders, placeholders + 70));
  }
  ASSERT_EQ(prefill(clean).to_string(), "ok");
  ASSERT_EQ(prefill(dirty).to_string(), "ok");
  EXPECT_EQ(bit_difference(clean.out.view(), dirty.out.view()), "");
  EXPECT_EQ(bit_difference(clean.state.view(), dirty.state.view()), "");
  EXPECT_EQ(nonzero(dirty.out.view().slice(0, padding, padding + 40)), "");
  EXPECT_EQ(nonzero(dirty.out.view().slice(0, placeholders, placeholders + 70)), "");
  EXPECT_EQ(nonzero(slot_of(dirty.state, 1)), "");
}

TEST_F(LightningPrefillSm90, BatchMatesDoNotChangeBits) {
  std::vector<LightningRow> rows = mixed_rows();
  rows.push_back({8, 5, 2300});
  LightningCase batch(served(rows));
  for (size_t n = 0; n + 1 < rows.size(); ++n) rows[n].slot = -1;
  LightningCase alone(served(rows));
  ASSERT_EQ(prefill(batch).to_string(), "ok");
  ASSERT_EQ(prefill(alone).to_string(), "ok");
  const int64_t at = batch.token_of(rows.size() - 1);
  EXPECT_EQ(bit_difference(batch.out.view().slice(0, at, at + 2300),
                           alone.out.view().slice(0, at, at + 2300)),
            "");
  EXPECT_EQ(bit_difference(slot_of(batch.state, 8), slot_of(alone.state, 8)), "");
}

TEST_F(LightningPrefillSm90, SplitOnTheGridIsTheWhole) {
  LightningCase whole(served({{2, 10, 300}}));
  ASSERT_EQ(prefill(whole).to_string(), "ok");
  LightningCase parts(served({{2, 10, 118}, {-1, 0, 182}}));
  ASSERT_EQ(prefill(parts).to_string(), "ok");
  const HostTensor first = copy_of(parts.out.view().slice(0, 0, 118));
  LightningCase second(served({{-1, 0, 118}, {2, 128, 182}}));
  second.state = parts.state.clone();
  second.bind();
  ASSERT_EQ(prefill(second).to_string(), "ok");
  EXPECT_EQ(bit_difference(first.view(), whole.out.view().slice(0, 0, 118)), "");
  EXPECT_EQ(
      bit_difference(second.out.view().slice(0, 118, 300), whole.out.view().slice(0, 118, 300)),
      "");
  EXPECT_EQ(bit_difference(slot_of(second.state, 2), slot_of(whole.state, 2)), "");
}

TEST_F(LightningPrefillSm90, RefusesByName) {
  LightningShape shape = served({{1, 0, 20}});
  shape.dim = 64;
  LightningCase narrow(shape);
  EXPECT_NE(prefill(narrow).message().find("K and V must be 128, got 64"), std::string::npos);
  shape = served({{1, 0, 20}});
  shape.io = DType::kF32;
  LightningCase wide(shape);
  EXPECT_NE(prefill(wide).message().find("must be bf16, got f32"), std::string::npos);
}

}  // namespace
}  // namespace linestate::testing
