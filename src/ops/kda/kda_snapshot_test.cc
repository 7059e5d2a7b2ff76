// Snapshot plans of prefill and decode: what they hold, what they leave alone, what is refused.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/message.h"
#include "ops/kda/kda_verify_case.h"

namespace linestate::testing {
namespace {

struct Plan {
  HostTensor row, position, slot;
  Plan(const std::vector<int32_t>& rows, const std::vector<int64_t>& positions,
       const std::vector<int32_t>& slots)
      : row(i32_tensor(rows)), position(i64_tensor(positions)), slot(i32_tensor(slots)) {}
  SnapshotPlan view() const { return {row, position, slot}; }
};

KdaShape small_shape(DType state = DType::kF32) {
  KdaShape shape;
  shape.H = 1;
  shape.HV = 2;
  shape.K = 32;
  shape.V = 16;
  shape.state = state;
  return shape;
}

HostTensor slot_of(const KdaProblem& problem, int64_t slot) {
  return copy_of(problem.state.view().slice(0, slot, slot + 1));
}

class KdaSnapshot : public ::testing::TestWithParam<const char*> {
 protected:
  std::string run(KdaPhase phase, KdaProblem& problem, const Plan* plan, int threads = 1,
                  DeviceStatus* status = nullptr) {
    KdaParams params = problem.params();
    if (plan != nullptr) params.snapshots = plan->view();
    return run_kda(phase, params, GetParam(), threads, status);
  }
  // Tokens [begin, end) of the sequence of a problem from `slot`.
  std::string part(KdaProblem& problem, int32_t slot, int64_t begin, int64_t end,
                   const Plan* plan = nullptr) {
    problem.set_rows({{slot, begin, static_cast<int32_t>(end - begin)}});
    KdaParams params = slice_tokens(problem, begin, end);
    if (plan != nullptr) params.snapshots = plan->view();
    return run_kda(KdaPhase::kPrefill, params, GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(All, KdaSnapshot, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

// P10: resuming from the snapshot is the cold run; the slot held NaN before.
TEST_P(KdaSnapshot, PrefillResumedOnTheGrid) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    KdaProblem cold = make_kda_problem(small_shape(dtype), 130, 161);
    fill_nan(cold.state.view().select(0, 7));
    KdaProblem split = cold.clone();
    KdaProblem plain = cold.clone();
    const Plan plan({0}, {64}, {7});
    ASSERT_EQ(part(cold, 3, 0, 130, &plan), "");
    ASSERT_EQ(part(plain, 3, 0, 130), "");
    EXPECT_EQ(bit_difference(cold.out, plain.out), "");
    EXPECT_EQ(bit_difference(slot_of(cold, 3), slot_of(plain, 3)), "");
    // The split run, bit for bit whatever the pool's dtype.
    ASSERT_EQ(part(split, 3, 0, 64), "");
    EXPECT_EQ(bit_difference(slot_of(cold, 7), slot_of(split, 3)), "");
    KdaProblem hit = cold.clone();
    fill_nan(hit.out);
    ASSERT_EQ(part(split, 3, 64, 130), "");
    ASSERT_EQ(part(hit, 7, 64, 130), "");
    EXPECT_EQ(bit_difference(hit.out.view().slice(0, 64, 130), split.out.view().slice(0, 64, 130)),
              "");
    EXPECT_EQ(bit_difference(slot_of(hit, 7), slot_of(split, 3)), "");
    if (dtype != DType::kF32) continue;
    EXPECT_EQ(bit_difference(hit.out.view().slice(0, 64, 130), cold.out.view().slice(0, 64, 130)),
              "");
    EXPECT_EQ(bit_difference(slot_of(hit, 7), slot_of(cold, 3)), "");
  }
}

// P10: decode crosses 192.
TEST_P(KdaSnapshot, Decode) {
  KdaProblem problem = make_kda_problem(small_shape(DType::kF16), 4, 163);
  const Plan plan({0, 1, 2, 3, 1}, {192, 192, 192, 192, 192}, {7, 1, 2, 4, 0});
  problem.set_rows({{3, 190, 1}, {5, 191, 1}, {-1, 191, 1}, {6, 191, 1, 0}});
  KdaProblem plain = problem.clone();
  DeviceStatus status;
  ASSERT_EQ(run(KdaPhase::kDecode, problem, &plan, 2, &status), "");
  ASSERT_EQ(run(KdaPhase::kDecode, plain, nullptr), "");
  EXPECT_EQ(bit_difference(problem.out, plain.out), "");
  for (int64_t slot : {1, 0}) {
    EXPECT_EQ(bit_difference(slot_of(problem, slot), slot_of(plain, 5)), "");
  }
  for (int64_t slot : {2, 3, 4, 5, 6, 7}) {
    EXPECT_EQ(bit_difference(slot_of(problem, slot), slot_of(plain, slot)), "");
  }
  EXPECT_EQ(status.row_of(DeviceFlag::kSnapshotNotTaken), 0);
}

// P11: a split prompt whose checkpoint lies in the second part.
TEST_P(KdaSnapshot, SecondPartOfASplitPrompt) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    KdaProblem run = make_kda_problem(small_shape(dtype), 400, 165);
    KdaProblem split = run.clone();
    const Plan plan({0}, {384}, {5});
    ASSERT_EQ(part(run, 2, 0, 128), "");
    ASSERT_EQ(part(run, 2, 128, 400, &plan), "");
    ASSERT_EQ(part(split, 2, 0, 128), "");
    ASSERT_EQ(part(split, 2, 128, 384), "");
    EXPECT_EQ(bit_difference(slot_of(run, 5), slot_of(split, 2)), "");
    ASSERT_EQ(part(split, 2, 384, 400), "");
    ASSERT_EQ(part(run, 5, 384, 400), "");
    EXPECT_EQ(bit_difference(slot_of(run, 5), slot_of(split, 2)), "");
  }
}

// P12: a prompt of exactly two chunks; each snapshot is the state at its own position.
TEST_P(KdaSnapshot, PromptThatEndsOnTheGrid) {
  KdaProblem run = make_kda_problem(small_shape(), 128, 167);
  const Plan plan({0, 0}, {128, 64}, {6, 5});
  ASSERT_EQ(part(run, 2, 0, 128, &plan), "");
  EXPECT_EQ(bit_difference(slot_of(run, 6), slot_of(run, 2)), "");
  KdaProblem hit = run.clone();
  ASSERT_EQ(part(hit, 5, 64, 128), "");
  EXPECT_EQ(bit_difference(hit.out, run.out), "");
  EXPECT_EQ(bit_difference(slot_of(hit, 5), slot_of(run, 2)), "");
}

// Any position: the state of a call that ends there, and nothing else changes. Rows that start off
// the grid, several entries in one block, equal positions.
TEST_P(KdaSnapshot, AnyPosition) {
  KdaShape shape = small_shape();
  shape.slots = 40;
  const std::vector<KdaRow> rows = {{1, 5, 61}, {2, 0, 40, 33}, {-1, 0, 4}};
  KdaProblem problem = make_kda_problem(shape, total_tokens(rows), 169);
  problem.set_rows(rows);
  KdaProblem plain = problem.clone();
  ASSERT_EQ(run(KdaPhase::kPrefill, plain, nullptr), "");
  const std::vector<int64_t> first = {6, 9, 15, 16, 17, 31, 33, 48, 65, 66};
  const std::vector<int64_t> second = {1, 2, 16, 17, 32, 33, 33};
  std::vector<int32_t> row, slot;
  std::vector<int64_t> position;
  for (int64_t at : first) {
    row.push_back(0);
    position.push_back(at);
  }
  for (int64_t at : second) {
    row.push_back(1);
    position.push_back(at);
  }
  for (size_t m = 0; m < row.size(); ++m) slot.push_back(static_cast<int32_t>(39 - m));
  const Plan plan(row, position, slot);
  const KdaProblem input = problem.clone();
  for (int threads : {1, 3}) {
    KdaProblem taken = input.clone();
    DeviceStatus status;
    ASSERT_EQ(run(KdaPhase::kPrefill, taken, &plan, threads, &status), "");
    EXPECT_FALSE(status.raised(DeviceFlag::kSnapshotNotTaken));
    EXPECT_EQ(bit_difference(taken.out, plain.out), "");
    for (int64_t s = 0; s < 23; ++s) {
      EXPECT_EQ(bit_difference(slot_of(taken, s), slot_of(plain, s)), "");
    }
    for (size_t m = 0; m < row.size(); ++m) {
      KdaProblem ends = input.clone();
      const auto n = static_cast<size_t>(row[m]);
      const int64_t begin = n == 0 ? 0 : 61;
      const auto tokens = static_cast<int32_t>(position[m] - rows[n].start);
      ends.set_rows({{rows[n].slot, rows[n].start, tokens}});
      ASSERT_EQ(run_kda(KdaPhase::kPrefill, slice_tokens(ends, begin, begin + tokens), GetParam()),
                "");
      EXPECT_EQ(bit_difference(slot_of(taken, slot[m]), slot_of(ends, rows[n].slot)), "") << m;
    }
  }
}

TEST_P(KdaSnapshot, EntriesThatAreNotTaken) {
  const std::vector<KdaRow> rows = {{1, 64, 20, 10}, {-1, 0, 4}, {2, 9, 0}};
  KdaProblem problem = make_kda_problem(small_shape(), 24, 171);
  problem.set_rows(rows);
  KdaProblem plain = problem.clone();
  ASSERT_EQ(run(KdaPhase::kPrefill, plain, nullptr), "");
  // Padding and unwanted entries are silent.
  const KdaProblem input = problem.clone();
  const Plan silent({1, 0, 0}, {2, 70, 70}, {5, -1, 8});
  DeviceStatus status;
  ASSERT_EQ(run(KdaPhase::kPrefill, problem, &silent, 1, &status), "");
  EXPECT_FALSE(status.raised(DeviceFlag::kSnapshotNotTaken));
  EXPECT_EQ(bit_difference(problem.state, plain.state), "");
  constexpr int64_t kFar = std::numeric_limits<int64_t>::min();
  for (int64_t at : {int64_t{0}, int64_t{64}, int64_t{75}, int64_t{84},
                     std::numeric_limits<int64_t>::max(), kFar}) {
    KdaProblem again = input.clone();
    const Plan plan({0}, {at}, {5});
    DeviceStatus raised;
    ASSERT_EQ(run(KdaPhase::kPrefill, again, &plan, 1, &raised), "");
    EXPECT_EQ(raised.row_of(DeviceFlag::kSnapshotNotTaken), 0) << at;
    EXPECT_EQ(bit_difference(again.state, plain.state), "");
  }
  const Plan empty({2}, {9}, {5});
  DeviceStatus raised;
  ASSERT_EQ(run(KdaPhase::kPrefill, problem, &empty, 1, &raised), "");
  EXPECT_EQ(raised.row_of(DeviceFlag::kSnapshotNotTaken), 2);
}

TEST_P(KdaSnapshot, OverflowOfADestinationIsReported) {
  KdaProblem problem = make_kda_problem(small_shape(DType::kF16), 3, 173);
  fill_constant(problem.beta, 5.0);
  fill_constant(problem.v, -3e6);
  problem.set_rows({{2, 1, 3}});
  const Plan plan({0}, {2}, {6});
  DeviceStatus status;
  ASSERT_EQ(run(KdaPhase::kPrefill, problem, &plan, 1, &status), "");
  EXPECT_EQ(status.overflow_slot.load(), 6);
}

TEST_P(KdaSnapshot, Refusals) {
  KdaProblem problem = make_kda_problem(small_shape(), 4, 175);
  problem.set_rows({{3, 5, 1}, {-1, 0, 1}, {4, 0, 1}, {5, 1, 1, 0}});
  const KdaProblem before = problem.clone();
  for (KdaPhase phase : {KdaPhase::kPrefill, KdaPhase::kDecode}) {
    const auto refused = [&](const Plan& plan, const char* text) {
      const std::string error = run(phase, problem, &plan);
      EXPECT_NE(error.find(text), std::string::npos) << error;
    };
    refused(Plan({0}, {6}, {4}), "snapshots.slot: expected a slot of no row, got slot 4 of row 2");
    refused(Plan({0}, {6}, {5}), "snapshots.slot: expected a slot of no row, got slot 5 of row 3");
    refused(Plan({0, 2}, {6, 1}, {7, 7}), "snapshots.slot: expected distinct live slots");
    refused(Plan({4}, {6}, {7}), "snapshots.row: expected one of the call's 4 rows, got 4");
    refused(Plan({-1}, {6}, {7}), "snapshots.row");
    refused(Plan({0, 2}, {6}, {7, 6}), "snapshots.position: expected shape [2]");
  }
  KdaProblem unknown = problem.clone();
  unknown.start = HostTensor();
  const Plan plan({0}, {6}, {7});
  EXPECT_NE(run(KdaPhase::kDecode, unknown, &plan).find("rows.start"), std::string::npos);
  EXPECT_EQ(bit_difference(problem.state, before.state), "");
}

}  // namespace
}  // namespace linestate::testing
