// The row contract of prefill: splits, batch mates, threads, padding, fresh and empty rows.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/kda_problem.h"

namespace linestate::testing {
namespace {

constexpr KdaPhase kPrefill = KdaPhase::kPrefill;

KdaShape small_shape() {
  KdaShape shape;
  shape.H = 1;
  shape.HV = 2;
  shape.K = 32;
  shape.V = 48;
  shape.slots = 8;
  return shape;
}

class KdaPrefillRows : public ::testing::TestWithParam<const char*> {
 protected:
  std::string run(KdaProblem& problem, int threads = 1, DeviceStatus* status = nullptr) {
    return run_kda(kPrefill, problem.params(), GetParam(), threads, status);
  }
};
INSTANTIATE_TEST_SUITE_P(All, KdaPrefillRows, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

HostTensor slot_of(const KdaProblem& problem, int64_t slot) {
  return copy_of(problem.state.view().select(0, slot));
}

HostTensor out_of(const KdaProblem& problem, int64_t begin, int64_t end) {
  return copy_of(problem.out.view().slice(0, begin, end));
}

// Tokens [begin, end) of `from` become tokens at `at` of `to`.
void copy_tokens(const KdaProblem& from, int64_t begin, int64_t end, KdaProblem& to, int64_t at) {
  const HostTensor* sources[] = {&from.q, &from.k, &from.v, &from.gate, &from.beta};
  HostTensor* targets[] = {&to.q, &to.k, &to.v, &to.gate, &to.beta};
  for (size_t i = 0; i < std::size(sources); ++i) {
    const int64_t width = sources[i]->num_elements() / from.tokens();
    for (int64_t e = 0; e < (end - begin) * width; ++e) {
      targets[i]->set(at * width + e, sources[i]->at(begin * width + e));
    }
  }
  to.A_log = from.A_log.clone();
  to.dt_bias = from.dt_bias.clone();
}

void copy_slot(const KdaProblem& from, int64_t source, KdaProblem& to, int64_t target) {
  const int64_t size = from.state.num_elements() / from.shape.slots;
  for (int64_t e = 0; e < size; ++e) {
    to.state.set(target * size + e, from.state.at(source * size + e));
  }
}

// P35: one row of 300 tokens alone, resumed from `start`.
KdaProblem alone(int64_t start) {
  KdaProblem problem = make_kda_problem(small_shape(), 300, 31);
  problem.set_rows({{3, start, 300}});
  return problem;
}

TEST_P(KdaPrefillRows, BatchMatesAndThreadsDoNotChangeBits) {
  KdaProblem reference = alone(10);
  KdaProblem input = reference.clone();
  ASSERT_EQ(run(reference), "");
  struct Place {
    int64_t rows;
    int64_t index;
  };
  for (const Place place : {Place{8, 0}, Place{64, 63}}) {
    KdaShape shape = small_shape();
    shape.slots = 70;
    std::vector<KdaRow> rows;
    for (int64_t n = 0; n < place.rows; ++n) {
      rows.push_back({static_cast<int32_t>(n + 5), n % 3, static_cast<int32_t>(n % 7)});
    }
    rows[static_cast<size_t>(place.index)] = {2, 10, 300};
    int64_t begin = 0;
    for (int64_t n = 0; n < place.index; ++n) begin += rows[static_cast<size_t>(n)].tokens;
    for (int threads : {1, 2, 3}) {
      KdaProblem batch = make_kda_problem(shape, total_tokens(rows), 99);
      copy_tokens(input, 0, 300, batch, begin);
      copy_slot(input, 3, batch, 2);
      batch.set_rows(rows);
      ASSERT_EQ(run(batch, threads), "");
      EXPECT_EQ(bit_difference(out_of(batch, begin, begin + 300), reference.out), "")
          << place.rows << " rows, " << threads << " threads";
      EXPECT_EQ(bit_difference(slot_of(batch, 2), slot_of(reference, 3)), "");
    }
  }
}

// Cuts at absolute multiples of 64, also when the row itself starts off the grid.
TEST_P(KdaPrefillRows, SplitOnTheGridIsTheWhole) {
  struct Split {
    int64_t start;
    std::vector<int64_t> cuts;
  };
  for (const Split& split : {Split{0, {128, 256}}, Split{0, {64}}, Split{0, {192, 256}},
                             Split{10, {64}}, Split{10, {64, 128, 256}}, Split{10, {192}}}) {
    KdaProblem whole = alone(split.start);
    KdaProblem pool = whole.clone();
    ASSERT_EQ(run(whole), "");
    std::vector<int64_t> ends = split.cuts;
    ends.push_back(split.start + 300);
    int64_t position = split.start;
    for (int64_t end : ends) {
      const int64_t first = position - split.start;
      const int64_t last = end - split.start;
      KdaProblem piece = make_kda_problem(small_shape(), last - first, 1);
      copy_tokens(whole, first, last, piece, 0);
      copy_slot(pool, 3, piece, 3);
      piece.set_rows({{3, position, static_cast<int32_t>(last - first)}});
      ASSERT_EQ(run(piece), "");
      copy_slot(piece, 3, pool, 3);
      EXPECT_EQ(bit_difference(piece.out, out_of(whole, first, last)), "") << position;
      position = end;
    }
    EXPECT_EQ(bit_difference(slot_of(pool, 3), slot_of(whole, 3)), "");
  }
}

TEST_P(KdaPrefillRows, PaddingTailAndPlaceholdersAreZeroAndUnread) {
  // P01, P05: two live rows, padding of every kind, placeholders and a tail full of NaN.
  KdaShape shape = small_shape();
  const std::vector<KdaRow> rows = {{4, 0, 70},     {-1, 3, 5},
                                    {2, 9, 60, 41}, {std::numeric_limits<int32_t>::min(), 0, 4},
                                    {8, 0, 3},      {-1, 0, 0}};
  const int64_t used = total_tokens(rows);
  KdaProblem problem = make_kda_problem(shape, used + 20, 41);
  KdaProblem clean = problem.clone();
  for (HostTensor* tensor : {&problem.q, &problem.k, &problem.v, &problem.gate, &problem.beta}) {
    fill_nan(tensor->view().slice(0, 70, 75));
    fill_nan(tensor->view().slice(0, 75 + 41, used + 20));
  }
  for (int64_t slot : {0, 1, 3, 5, 6, 7}) fill_nan(problem.state.view().select(0, slot));
  fill_nan(problem.state.view().select(0, 4));  // fresh: selected away
  const HostTensor before = problem.state.clone();
  problem.set_rows(rows);
  DeviceStatus status;
  ASSERT_EQ(run(problem, 2, &status), "");
  EXPECT_EQ(nonzero(out_of(problem, 70, 75)), "");
  EXPECT_EQ(nonzero(out_of(problem, 75 + 41, used + 20)), "");
  EXPECT_TRUE(status.raised(DeviceFlag::kSlotOutOfRange));
  EXPECT_EQ(status.row_of(DeviceFlag::kSlotOutOfRange), 4);
  EXPECT_FALSE(status.raised(DeviceFlag::kNonFinite));
  for (int64_t slot : {0, 1, 3, 5, 6, 7}) {
    EXPECT_EQ(bit_difference(slot_of(problem, slot), copy_of(before.view().select(0, slot))), "");
  }
  // The live rows are what they are without the rest.
  KdaProblem first = make_kda_problem(shape, 70, 1);
  copy_tokens(clean, 0, 70, first, 0);
  first.set_rows({{4, 0, 70}});
  ASSERT_EQ(run(first), "");
  EXPECT_EQ(bit_difference(out_of(problem, 0, 70), first.out), "");
  EXPECT_EQ(bit_difference(slot_of(problem, 4), slot_of(first, 4)), "");
  KdaProblem second = make_kda_problem(shape, 41, 1);
  copy_tokens(clean, 75, 75 + 41, second, 0);
  copy_slot(clean, 2, second, 2);
  second.set_rows({{2, 9, 41}});
  ASSERT_EQ(run(second), "");
  EXPECT_EQ(bit_difference(out_of(problem, 75, 75 + 41), second.out), "");
  EXPECT_EQ(bit_difference(slot_of(problem, 2), slot_of(second, 2)), "");
}

TEST_P(KdaPrefillRows, RowsWithoutTokens) {
  // P25, P03 c: empty rows anywhere; a resumed one keeps its bits, a fresh one becomes zero.
  const std::vector<KdaRow> rows = {{5, 8, 0},    {1, 0, 40},   {2, 16, 0},  {6, 0, 0},
                                    {7, 0, 3, 0}, {0, 4, 2, 0}, {3, 20, 40}, {4, 1, 0}};
  KdaProblem problem = make_kda_problem(small_shape(), total_tokens(rows), 42);
  fill_nan(problem.state.view().select(0, 6));
  fill_nan(problem.state.view().select(0, 7));
  problem.set_rows(rows);
  KdaProblem compact = problem.clone();
  ASSERT_EQ(run(problem), "");
  for (int64_t slot : {5, 2, 0, 4}) {
    EXPECT_EQ(bit_difference(slot_of(problem, slot), slot_of(compact, slot)), "") << slot;
  }
  EXPECT_EQ(nonzero(slot_of(problem, 6)), "");
  EXPECT_EQ(nonzero(slot_of(problem, 7)), "");
  EXPECT_EQ(nonzero(out_of(problem, 40, 45)), "");
  compact.set_rows({{1, 0, 40}, {-1, 0, 5}, {3, 20, 40}});
  ASSERT_EQ(run(compact), "");
  EXPECT_EQ(bit_difference(problem.out, compact.out), "");
  EXPECT_EQ(bit_difference(slot_of(problem, 1), slot_of(compact, 1)), "");
  EXPECT_EQ(bit_difference(slot_of(problem, 3), slot_of(compact, 3)), "");
}

TEST_P(KdaPrefillRows, NoTokensAtAll) {
  KdaProblem problem = make_kda_problem(small_shape(), 0, 43);
  problem.set_rows({{1, 0, 0}, {2, 5, 0}});
  const HostTensor before = slot_of(problem, 2);
  ASSERT_EQ(run(problem), "");
  EXPECT_EQ(nonzero(slot_of(problem, 1)), "");
  EXPECT_EQ(bit_difference(slot_of(problem, 2), before), "");
}

TEST_P(KdaPrefillRows, FreshRowsDoNotSeeTheOldTenant) {
  // P02, P03: the same prompt in every slot, whatever the slot held.
  for (int32_t tokens : {1, 3, 17}) {
    KdaProblem problem = make_kda_problem(small_shape(), tokens, 44);
    HostTensor out, state;
    for (int32_t slot = 0; slot < 8; ++slot) {
      KdaProblem copy = problem.clone();
      if (slot % 2 == 0) fill_nan(copy.state);
      copy.set_rows({{slot, 0, tokens}});
      ASSERT_EQ(run(copy), "");
      if (slot == 0) {
        out = copy.out.clone();
        state = slot_of(copy, 0);
        EXPECT_TRUE(compare(out, out).finite);
      }
      EXPECT_EQ(bit_difference(copy.out, out), "");
      EXPECT_EQ(bit_difference(slot_of(copy, slot), state), "");
    }
  }
}

TEST_P(KdaPrefillRows, ShortLengthsMatchTheOracle) {
  // P23: memory behind every row is NaN.
  for (int32_t tokens : {1, 15, 16, 17, 63, 65, 500}) {
    KdaProblem problem = make_kda_problem(small_shape(), 2 * tokens + 64, 45);
    for (HostTensor* tensor : {&problem.q, &problem.k, &problem.v, &problem.gate, &problem.beta}) {
      fill_nan(tensor->view().slice(0, int64_t{2} * tokens, int64_t{2} * tokens + 64));
    }
    problem.set_rows({{0, 0, tokens}, {5, 3, tokens}});
    EXPECT_EQ(check_kda_against_ref(kPrefill, problem, GetParam()), "") << tokens;
  }
}

TEST_P(KdaPrefillRows, OneMoreTokenCompletesTheChunk) {
  KdaProblem whole = make_kda_problem(small_shape(), 64, 46);
  whole.set_rows({{0, 0, 64}});
  KdaProblem most = make_kda_problem(small_shape(), 63, 46);
  copy_tokens(whole, 0, 63, most, 0);
  most.set_rows({{0, 0, 63}});
  KdaProblem last = make_kda_problem(small_shape(), 1, 46);
  copy_tokens(whole, 63, 64, last, 0);
  last.set_rows({{0, 63, 1}});
  ASSERT_EQ(run(whole), "");
  ASSERT_EQ(run(most), "");
  copy_slot(most, 0, last, 0);
  ASSERT_EQ(run(last), "");
  EXPECT_LE(compare(slot_of(last, 0), slot_of(whole, 0)).rel, 5e-7);
  EXPECT_LE(compare(last.out, out_of(whole, 63, 64)).rel, 1e-6);
}

TEST_P(KdaPrefillRows, OverflowOfAnF16PoolIsReported) {
  KdaShape shape = small_shape();
  shape.state = DType::kF16;
  shape.beta_form = KdaBeta::kProbability;
  KdaProblem problem = make_kda_problem(shape, 8, 47);
  fill_constant(problem.beta, 1.0);
  fill_constant(problem.v.view().slice(0, 4, 8), 3e6);
  problem.set_rows({{2, 0, 4}, {6, 0, 4}});
  DeviceStatus status;
  KdaParams params = problem.params();
  params.layer = 13;
  ASSERT_EQ(run_kda(kPrefill, params, GetParam(), 2, &status), "");
  EXPECT_TRUE(status.raised(DeviceFlag::kStateOverflow));
  EXPECT_EQ(status.row_of(DeviceFlag::kStateOverflow), 1);
  EXPECT_EQ(status.overflow_slot.load(), 6);
  EXPECT_EQ(status.overflow_layer.load(), 13);
  EXPECT_FALSE(status.raised(DeviceFlag::kNonFinite));
}

TEST_P(KdaPrefillRows, NonFiniteOutputIsReported) {
  KdaProblem problem = make_kda_problem(small_shape(), 8, 48);
  fill_nan(problem.v.view().slice(0, 5, 6));
  problem.set_rows({{2, 0, 8}});
  DeviceStatus status;
  ASSERT_EQ(run(problem, 1, &status), "");
  EXPECT_TRUE(status.raised(DeviceFlag::kNonFinite));
  EXPECT_EQ(status.row_of(DeviceFlag::kNonFinite), 5);
}

}  // namespace
}  // namespace linestate::testing
