#include <gtest/gtest.h>

#include "testing/lightning_case.h"

namespace linestate::testing {
namespace {

Status prefill(LightningCase& test, const char* kernel, int threads = 1) {
  return run_lightning(lightning_prefill, lightning_prefill_workspace_bytes, test, kernel, threads);
}

// Row `n` of `whole` alone, tokens [begin, begin + tokens) of it, on the pool as it is.
void prefill_piece(LightningCase& whole, size_t n, int64_t begin, int32_t tokens,
                   const char* kernel) {
  const LightningRow row = whole.shape.rows[n];
  LightningShape shape = whole.shape;
  shape.rows = {{row.slot, row.start + begin, tokens}};
  shape.slots = 1;  // its own pool is not used
  shape.capacity = 0;
  LightningCase piece(shape);
  const int64_t first = whole.token_of(n) + begin;
  piece.params.q = whole.q.view().slice(0, first, first + tokens);
  piece.params.k = whole.k.view().slice(0, first, first + tokens);
  piece.params.v = whole.v.view().slice(0, first, first + tokens);
  piece.params.out = whole.out.view().slice(0, first, first + tokens);
  piece.params.slopes = whole.slopes;
  piece.params.state = whole.state;
  ASSERT_EQ(prefill(piece, kernel).to_string(), "ok");
}

void decode_tokens(LightningCase& whole, size_t n, const char* kernel) {
  const LightningRow row = whole.shape.rows[n];
  for (int64_t i = 0; i < row.tokens; ++i) {
    LightningShape shape = whole.shape;
    shape.rows = {{row.slot, row.start + i, 1}};
    shape.slots = 1;  // its own pool is not used
    shape.capacity = 0;
    LightningCase step(shape);
    const int64_t at = whole.token_of(n) + i;
    step.params.q = whole.q.view().slice(0, at, at + 1);
    step.params.k = whole.k.view().slice(0, at, at + 1);
    step.params.v = whole.v.view().slice(0, at, at + 1);
    step.params.out = whole.out.view().slice(0, at, at + 1);
    step.params.slopes = whole.slopes;
    step.params.state = whole.state;
    ASSERT_EQ(
        run_lightning(lightning_decode, lightning_decode_workspace_bytes, step, kernel).to_string(),
        "ok");
  }
}

void expect_same_bits(const LightningCase& a, const LightningCase& b) {
  EXPECT_EQ(bit_difference(a.out.view(), b.out.view()), "");
  EXPECT_EQ(bit_difference(a.state.view(), b.state.view()), "");
}

class LightningPrefill : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kernels, LightningPrefill, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(LightningPrefill, MatchesTheRecurrenceForEveryHeadDim) {
  for (int64_t dim : {16, 64, 80, 128, 256}) {
    SCOPED_TRACE(dim);
    LightningShape shape;
    shape.rows = {{3, 0, 70}, {0, 64, 33}, {5, 5, 1}, {1, 31, 34}};
    shape.dim = dim;
    LightningCase test(shape);
    const LightningExpected expected = expect_lightning(test);
    ASSERT_EQ(prefill(test, GetParam()).to_string(), "ok");
    EXPECT_EQ(disagreement(test, expected), "");
  }
}

TEST_P(LightningPrefill, EveryDtypeOfInputOutputAndState) {
  const DType all[] = {DType::kF32, DType::kBF16, DType::kF16};
  for (DType io : all) {
    for (DType out : all) {
      for (DType state : all) {
        SCOPED_TRACE(std::string(dtype_name(io)) + " " + std::string(dtype_name(out)) + " " +
                     std::string(dtype_name(state)));
        LightningShape shape;
        shape.rows = {{1, 0, 37}, {2, 10, 5}};
        shape.dim = 32;
        shape.slots = 3;
        shape.io = io;
        shape.out = out;
        shape.state = state;
        LightningCase test(shape);
        const LightningExpected expected = expect_lightning(test);
        ASSERT_EQ(prefill(test, GetParam()).to_string(), "ok");
        EXPECT_EQ(disagreement(test, expected), "");
      }
    }
  }
}

// A row that starts at 0 does not look at its slot, however short it is (golden trap 4).
TEST_P(LightningPrefill, FreshRowsOnDirtySlots) {
  const std::vector<std::vector<int32_t>> batches = {{1}, {1, 1}, {1, 2}, {3}, {0}, {0, 1, 40}};
  for (const std::vector<int32_t>& lengths : batches) {
    LightningShape shape;
    for (size_t n = 0; n < lengths.size(); ++n) {
      shape.rows.push_back({static_cast<int32_t>(2 * n), 0, lengths[n]});
    }
    LightningCase clean(shape);
    LightningCase dirty(shape);
    for (size_t n = 0; n < lengths.size(); ++n) {
      const auto slot = static_cast<int64_t>(2 * n);
      fill_nan(dirty.state.view().slice(0, slot, slot + 1));
    }
    const LightningExpected expected = expect_lightning(clean);
    ASSERT_EQ(prefill(clean, GetParam()).to_string(), "ok");
    ASSERT_EQ(prefill(dirty, GetParam()).to_string(), "ok");
    EXPECT_EQ(disagreement(clean, expected), "");
    expect_same_bits(clean, dirty);
    if (lengths[0] == 0) {
      EXPECT_EQ(nonzero(slot_of(dirty.state, 0)), "");
    }
  }
}

// Rows padded to a captured bucket, placeholder tokens and everything behind the rows hold NaN.
TEST_P(LightningPrefill, PaddingTokensAndRowsTouchNothing) {
  LightningShape shape;
  shape.rows = {{4, 0, 70, 66}, {-1, 0, 3}, {2, 64, 60}, {9, 5, 2}, {1, 7, 4, 0}, {-1, 0, 0}};
  shape.capacity = 256;
  LightningCase test(shape);
  LightningCase plain(shape);
  for (HostTensor* tensor : {&test.q, &test.k, &test.v}) {
    fill_nan(tensor->view().slice(0, 66, 73));
    fill_nan(tensor->view().slice(0, 133, 256));
  }
  for (int64_t unused : {0, 3, 5}) fill_nan(test.state.view().slice(0, unused, unused + 1));
  const HostTensor before = test.state.clone();
  const LightningExpected expected = expect_lightning(plain);
  ASSERT_EQ(prefill(test, GetParam()).to_string(), "ok");
  for (const auto& [begin, end] : {std::pair{0, 66}, std::pair{73, 133}}) {
    const Difference diff =
        compare(test.out.view().slice(0, begin, end), expected.out.view().slice(0, begin, end));
    EXPECT_LE(diff.rel, 1e-6) << diff.text();
  }
  EXPECT_EQ(nonzero(test.out.view().slice(0, 66, 73)), "");
  EXPECT_EQ(nonzero(test.out.view().slice(0, 133, 256)), "");
  for (int64_t live : {4, 2}) {
    const Difference diff = compare(slot_of(test.state, live), slot_of(expected.state, live));
    EXPECT_LE(diff.rel, 5e-7) << diff.text();
  }
  for (int64_t other : {0, 1, 3, 5}) {
    EXPECT_EQ(bit_difference(slot_of(test.state, other), slot_of(before, other)), "") << other;
  }
  EXPECT_TRUE(test.status.raised(DeviceFlag::kSlotOutOfRange));
  EXPECT_EQ(test.status.row_of(DeviceFlag::kSlotOutOfRange), 3);
}

TEST_P(LightningPrefill, EmptyRowsAnywhere) {
  LightningShape shape;
  shape.rows = {{3, 8, 0}, {0, 0, 128}, {1, 64, 0}, {2, 3, 1}, {5, 0, 0}, {4, 64, 64}};
  LightningCase test(shape);
  const HostTensor before = test.state.clone();
  const LightningExpected expected = expect_lightning(test);
  ASSERT_EQ(prefill(test, GetParam()).to_string(), "ok");
  EXPECT_EQ(disagreement(test, expected), "");
  for (int64_t slot : {3, 1}) {
    EXPECT_EQ(bit_difference(slot_of(test.state, slot), slot_of(before, slot)), "") << slot;
  }
  EXPECT_EQ(nonzero(slot_of(test.state, 5)), "");
}

TEST_P(LightningPrefill, SplitOnTheChunkGridGivesTheBitsOfTheWhole) {
  for (int64_t start : {int64_t{0}, int64_t{64}, int64_t{37}}) {
    const int32_t head = start % 64 == 0 ? 0 : static_cast<int32_t>(64 - start % 64);
    for (const std::vector<int32_t>& cuts :
         {std::vector<int32_t>{128, 128}, std::vector<int32_t>{64}, std::vector<int32_t>{192}}) {
      LightningShape shape;
      shape.rows = {{2, start, 300}};
      LightningCase whole(shape);
      LightningCase parts(shape);
      ASSERT_EQ(prefill(whole, GetParam()).to_string(), "ok");
      int32_t done = 0;
      for (int32_t cut : cuts) {
        const int32_t tokens = cut + (done == 0 ? head : 0);
        prefill_piece(parts, 0, done, tokens, GetParam());
        done += tokens;
      }
      prefill_piece(parts, 0, done, 300 - done, GetParam());
      expect_same_bits(whole, parts);
    }
  }
}

TEST(LightningPrefillRef, AnySplitAndDecodesGiveTheBitsOfThePrefill) {
  LightningShape shape;
  shape.rows = {{2, 5, 41}};
  LightningCase whole(shape);
  LightningCase parts(shape);
  LightningCase steps(shape);
  ASSERT_EQ(prefill(whole, "ref").to_string(), "ok");
  prefill_piece(parts, 0, 0, 1, "ref");
  prefill_piece(parts, 0, 1, 16, "ref");
  prefill_piece(parts, 0, 17, 24, "ref");
  decode_tokens(steps, 0, "ref");
  expect_same_bits(whole, parts);
  expect_same_bits(whole, steps);
}

TEST(LightningPrefillCpu, AnySplitAndDecodesAgreeWithThePrefill) {
  LightningShape shape;
  shape.rows = {{2, 5, 171}};
  shape.dim = 128;
  LightningCase whole(shape);
  LightningCase parts(shape);
  LightningCase steps(shape);
  ASSERT_EQ(prefill(whole, "cpu").to_string(), "ok");
  for (int32_t done = 0, size = 1; done < 171;
       done += size, size = std::min(size + 13, 171 - done)) {
    prefill_piece(parts, 0, done, size, "cpu");
  }
  decode_tokens(steps, 0, "cpu");
  for (const LightningCase* other : {&parts, &steps}) {
    EXPECT_LE(compare(other->out.view(), whole.out.view()).rel, 1e-6);
    EXPECT_LE(compare(slot_of(other->state, 2), slot_of(whole.state, 2)).rel, 1e-6);
  }
}

TEST_P(LightningPrefill, BatchMatesAndThreadsDoNotMatter) {
  LightningShape alone_shape;
  alone_shape.rows = {{1, 0, 150}};
  alone_shape.slots = 9;
  LightningCase alone(alone_shape);
  ASSERT_EQ(prefill(alone, GetParam()).to_string(), "ok");
  const int64_t n = 150;
  for (size_t place : {size_t{0}, size_t{3}, size_t{7}}) {
    for (int threads : {1, 2, 3}) {
      LightningShape shape = alone_shape;
      shape.seed = 77;
      shape.rows.clear();
      for (int32_t i = 0; i < 8; ++i) {
        shape.rows.push_back({i == 7 ? -1 : i + 2, i % 2 == 0 ? 0 : 40, 5 + 9 * i});
      }
      shape.rows[place] = {1, 0, 150};
      LightningCase batch(shape);
      const int64_t at = batch.token_of(place);
      for (auto [from, to] : {std::pair{&alone.q, &batch.q}, std::pair{&alone.k, &batch.k},
                              std::pair{&alone.v, &batch.v}}) {
        for (int64_t i = 0; i < n * 2 * 64; ++i) to->set(at * 2 * 64 + i, from->at(i));
      }
      ASSERT_EQ(prefill(batch, GetParam(), threads).to_string(), "ok");
      EXPECT_EQ(bit_difference(batch.out.view().slice(0, at, at + n), alone.out.view()), "");
      EXPECT_EQ(bit_difference(slot_of(batch.state, 1), slot_of(alone.state, 1)), "");
    }
  }
}

// Fewer heads than threads: the columns of a head are divided among them.
TEST_P(LightningPrefill, ThreadsThatShareAHeadDoNotMatter) {
  for (int64_t dim : {16, 80, 128, 256}) {
    for (DType state : {DType::kF32, DType::kBF16}) {
      LightningShape shape;
      shape.rows = {{1, 40, 75, 70}, {3, 0, 0}, {-1, 0, 2}};
      shape.heads = 1;
      shape.dim = dim;
      shape.state = state;
      LightningCase alone(shape);
      ASSERT_EQ(prefill(alone, GetParam()).to_string(), "ok");
      for (int threads : {2, 4, 7, 64}) {
        SCOPED_TRACE(std::to_string(dim) + " with " + std::to_string(threads));
        LightningCase shared(shape);
        ASSERT_EQ(prefill(shared, GetParam(), threads).to_string(), "ok");
        expect_same_bits(alone, shared);
      }
    }
  }
}

// 0.917 a token is the steepest slope of 64 heads; 40 underflows within a block; 0 and 4e-8 keep
// everything.
TEST_P(LightningPrefill, SteepAndFlatSlopes) {
  LightningShape shape;
  shape.rows = {{0, 64, 200}, {1, 0, 45}};
  shape.heads = 4;
  LightningCase test(shape);
  test.slopes = f32_tensor({0.917f, 40.0f, 0.0f, 4e-8f});
  test.bind();
  const LightningExpected expected = expect_lightning(test);
  ASSERT_EQ(prefill(test, GetParam()).to_string(), "ok");
  for (int64_t h = 0; h < 4; ++h) {
    const Difference out =
        compare(test.out.view().slice(1, h, h + 1), expected.out.view().slice(1, h, h + 1));
    EXPECT_LE(out.rel, 1e-6) << "head " << h << " " << out.text();
    const Difference state =
        compare(test.state.view().slice(1, h, h + 1), expected.state.view().slice(1, h, h + 1));
    EXPECT_LE(state.rel, 5e-7) << "head " << h << " " << state.text();
  }
}

TEST_P(LightningPrefill, WithoutKeysTheStateDecays) {
  LightningShape shape;
  shape.rows = {{2, 1, 77}};
  LightningCase test(shape);
  fill_constant(test.k, 0.0);
  HostTensor want = test.state.clone();
  for (int64_t h = 0; h < 2; ++h) {
    const double decay = std::exp(-77.0 * test.slopes.at(h));
    const int64_t base = (4 + h) * 64 * 64;
    for (int64_t i = base; i < base + int64_t{64} * 64; ++i) want.set(i, decay * want.at(i));
  }
  ASSERT_EQ(prefill(test, GetParam()).to_string(), "ok");
  const Difference diff = compare(slot_of(test.state, 2), slot_of(want, 2));
  EXPECT_LE(diff.rel, 5e-7) << diff.text();
  for (int64_t other : {0, 1, 3, 4, 5}) {
    EXPECT_EQ(bit_difference(slot_of(test.state, other), slot_of(want, other)), "") << other;
  }
}

TEST_P(LightningPrefill, LaterTokensDoNotReachEarlierOnes) {
  LightningShape shape;
  shape.rows = {{2, 3, 60}};
  LightningCase clean(shape);
  LightningCase spoiled(shape);
  for (HostTensor* tensor : {&spoiled.q, &spoiled.k, &spoiled.v}) {
    fill_nan(tensor->view().slice(0, 18, 60));
  }
  ASSERT_EQ(prefill(clean, GetParam()).to_string(), "ok");
  ASSERT_EQ(prefill(spoiled, GetParam()).to_string(), "ok");
  EXPECT_EQ(bit_difference(spoiled.out.view().slice(0, 0, 18), clean.out.view().slice(0, 0, 18)),
            "");
}

TEST_P(LightningPrefill, LongSlowHistoryStaysClose) {
  LightningShape shape;
  shape.rows = {{0, 0, 4096}};
  shape.heads = 1;
  shape.dim = 16;
  shape.slots = 1;
  LightningCase test(shape);
  test.slopes = f32_tensor({1e-4f});
  test.bind();
  const LightningExpected expected = expect_lightning(test);
  ASSERT_EQ(prefill(test, GetParam()).to_string(), "ok");
  EXPECT_LE(compare(test.state.view(), expected.state.view()).rel, 5e-6);
  EXPECT_LE(compare(test.out.view(), expected.out.view()).rel, 5e-6);
}

}  // namespace
}  // namespace linestate::testing
