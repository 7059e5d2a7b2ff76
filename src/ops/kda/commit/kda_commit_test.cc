// Verify and commit against plain decodes: state, window and snapshots.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "linestate/ops/causal_conv1d.h"
#include "ops/kda/kda_verify_case.h"

namespace linestate::testing {
namespace {

class KdaCommit : public ::testing::TestWithParam<const char*> {
 protected:
  bool exact() const { return std::string(GetParam()) == "ref"; }
  // Bits on ref, to tolerance on others: a 16-bit pool is `want` rounded once.
  void expect_same(const ConstTensorView& actual, const ConstTensorView& want) {
    if (exact()) {
      EXPECT_EQ(bit_difference(actual, cast_of(want, actual.dtype)), "");
    }
    const bool wide = actual.dtype == DType::kF32;
    EXPECT_LE(compare(actual, want).rel, wide ? 1e-6 : 1.05 * rounding_error(want, actual.dtype));
  }
};
INSTANTIATE_TEST_SUITE_P(All, KdaCommit, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

KdaShape small_shape(DType state = DType::kF32) {
  KdaShape shape;
  shape.H = 1;
  shape.HV = 2;
  shape.K = 32;
  shape.V = 16;
  shape.state = state;
  return shape;
}

// The last three of (old window ++ inputs of a path).
HostTensor window_after(const KdaVerifyCase& before, size_t n, const std::vector<int64_t>& path) {
  HostTensor out(before.window.dtype(), {1, kConvChannels, 3});
  for (int64_t c = 0; c < kConvChannels; ++c) {
    std::vector<double> history(3, 0.0);
    for (int64_t j = 0; j < 3 && before.rows[n].start > 0; ++j) {
      history[static_cast<size_t>(j)] =
          before.window.at((before.rows[n].slot * kConvChannels + c) * 3 + j);
    }
    for (int64_t node : path) {
      history.push_back(before.conv_x.at((before.begin_of(n) + node) * kConvChannels + c));
    }
    for (int64_t j = 0; j < 3; ++j) {
      out.set(c * 3 + j, history[history.size() - 3 + static_cast<size_t>(j)]);
    }
  }
  return out;
}

// Every node of a tree committed, for every dtype of the pool: one rounding at the end.
TEST_P(KdaCommit, EveryNodeOfATree) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::vector<KdaRow> rows = {{3, 7, 11}, {-1, 0, 2}, {5, 0, 6, 4}};
    KdaVerifyCase verified = make_verify_case(small_shape(dtype), rows, 131);
    verified.parent = i32_tensor(random_parents(rows, 5, true));
    fill_nan(verified.problem.state.view().select(0, 5));
    fill_nan(verified.window.view().select(0, 5));
    ASSERT_EQ(verified.verify(GetParam()), "");
    for (int64_t node = 0; node < 11; ++node) {
      KdaVerifyCase test = verified.clone();
      const std::vector<int64_t> path = path_of(test, 0, node);
      const std::vector<int64_t> fresh_path = path_of(test, 2, node % 4);
      const std::vector<int32_t> accepted = {
          path.empty() ? -1 : static_cast<int32_t>(node), 7,
          fresh_path.empty() ? -1 : static_cast<int32_t>(node % 4)};
      ASSERT_EQ(test.commit(GetParam(), accepted), "");
      std::string error;
      KdaProblem steps = decode_path(verified, 0, path, GetParam(), error);
      expect_same(test.slot_state(3), steps.state.view().slice(0, 3, 4));
      EXPECT_EQ(bit_difference(test.slot_window(3), window_after(verified, 0, path)), "");
      for (int64_t slot : {0, 1, 2, 4, 6, 7}) {
        EXPECT_EQ(bit_difference(test.slot_state(slot), verified.slot_state(slot)), "");
        EXPECT_EQ(bit_difference(test.slot_window(slot), verified.slot_window(slot)), "");
      }
      if (fresh_path.empty()) continue;
      steps = decode_path(verified, 2, fresh_path, GetParam(), error);
      ASSERT_EQ(error, "");
      expect_same(test.slot_state(5), steps.state.view().slice(0, 5, 6));
      EXPECT_EQ(bit_difference(test.slot_window(5), window_after(verified, 2, fresh_path)), "");
    }
  }
}

TEST_P(KdaCommit, NothingAcceptedChangesNoBit) {
  KdaVerifyCase test = make_verify_case(small_shape(), {{3, 7, 4}, {5, 0, 2}, {6, 1, 0}}, 133);
  fill_nan(test.problem.state.view().select(0, 5));
  fill_nan(test.window.view().select(0, 5));
  ASSERT_EQ(test.verify(GetParam()), "");
  const KdaVerifyCase before = test.clone();
  ASSERT_EQ(test.commit(GetParam(), {-1, -1, -1}), "");
  EXPECT_EQ(bit_difference(test.problem.state, before.problem.state), "");
  EXPECT_EQ(bit_difference(test.window, before.window), "");
}

TEST_P(KdaCommit, BadNodesAreRefusedBeforeAnythingIsWritten) {
  KdaVerifyCase test = make_verify_case(small_shape(), {{3, 7, 4}, {5, 4, 4, 3}}, 135);
  test.parent = i32_tensor({-1, 0, -1, 2, -1, 0, 1, 2});
  ASSERT_EQ(test.verify(GetParam()), "");
  const KdaVerifyCase before = test.clone();
  EXPECT_NE(test.commit(GetParam(), {0, 3}).find("accepted_node: expected -1 or one of the 3"),
            std::string::npos);
  EXPECT_NE(test.commit(GetParam(), {4, 0}).find("accepted_node"), std::string::npos);
  EXPECT_NE(test.commit(GetParam(), {-2, 0}).find("accepted_node"), std::string::npos);
  for (int32_t inert : {2, 3}) {
    EXPECT_NE(test.commit(GetParam(), {inert, 0}).find("got inert"), std::string::npos);
  }
  EXPECT_EQ(bit_difference(test.problem.state, before.problem.state), "");
  EXPECT_EQ(bit_difference(test.window, before.window), "");
  test.conv_x = HostTensor();
  EXPECT_NE(test.commit(GetParam(), {0, 0}).find("window: expected to be given exactly"),
            std::string::npos);
}

// P08: q, k and v windows move by as many inputs as were accepted; f32 windows keep bf16 inputs.
TEST_P(KdaCommit, WindowsOfPartlyAcceptedChains) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    KdaVerifyCase verified = make_verify_case(small_shape(), {{2, 9, 4}}, 137);
    verified.window = cast_of(verified.window.view(), dtype);
    ASSERT_EQ(verified.verify(GetParam()), "");
    for (int32_t L = 1; L <= 4; ++L) {
      KdaVerifyCase test = verified.clone();
      ASSERT_EQ(test.commit(GetParam(), {L - 1}), "");
      const std::vector<int64_t> path = path_of(test, 0, L - 1);
      EXPECT_EQ(bit_difference(test.slot_window(2), window_after(verified, 0, path)), "");
      std::string error;
      const KdaProblem steps = decode_path(verified, 0, path, GetParam(), error);
      expect_same(test.slot_state(2), steps.state.view().slice(0, 2, 3));
    }
  }
}

// P09: one real token among placeholders.
TEST_P(KdaCommit, PlaceholdersDoNotEnterTheState) {
  KdaVerifyCase test = make_verify_case(small_shape(), {{2, 9, 4}, {5, 30, 4, 1}}, 139);
  for (HostTensor* input : {&test.problem.k, &test.problem.v, &test.problem.gate}) {
    fill_nan(input->view().slice(0, 5, 8));
  }
  const KdaVerifyCase before = test.clone();
  ASSERT_EQ(test.verify(GetParam()), "");
  ASSERT_EQ(test.commit(GetParam(), {3, 0}), "");
  std::string error;
  const KdaProblem steps = decode_path(before, 1, {0}, GetParam(), error);
  ASSERT_EQ(error, "");
  expect_same(test.slot_state(5), steps.state.view().slice(0, 5, 6));
  expect_same(test.problem.out.view().slice(0, 4, 5), steps.out.view().slice(0, 4, 5));
  EXPECT_EQ(nonzero(test.problem.out.view().slice(0, 5, 8)), "");
  EXPECT_EQ(bit_difference(test.slot_window(5), window_after(before, 1, {0})), "");
}

// Calls on tokens of one sequence: attention and convolution, their state and window in `pool`.
// Accepted tokens of a verify are the sequence's; the rejected ones are noise.
struct Speculation {
  KdaProblem source;
  HostTensor conv_x;   // [T, channels]
  KdaVerifyCase pool;  // only its state and window
  std::string error;

  void move_window(int64_t t, int64_t tokens) {
    const HostTensor weight(DType::kF32, {kConvChannels, 4});
    HostTensor y(DType::kF32, {tokens, kConvChannels});
    CausalConv1dParams p;
    p.rows = source.params().rows;
    p.x = conv_x.view().slice(0, t, t + tokens);
    p.weight = weight;
    p.window = pool.window;
    p.out = y;
    if (error.empty()) {
      error = run_sized(causal_conv1d_prefill, causal_conv1d_prefill_workspace_bytes, p, "auto");
    }
  }
  void extend(KdaPhase phase, int32_t slot, int64_t t, int32_t tokens, const char* kernel) {
    source.set_rows({{slot, t, tokens}});
    KdaParams p = slice_tokens(source, t, t + tokens);
    p.state = pool.problem.state;
    if (error.empty()) error = run_kda(phase, p, kernel);
    move_window(t, tokens);
  }
  void verify(int32_t slot, int64_t t, int32_t tokens, int32_t accepted, const char* kernel) {
    KdaVerifyCase draft =
        make_verify_case(source.shape, {{slot, t, tokens}}, 900 + static_cast<uint64_t>(t));
    const auto take = [&](HostTensor& to, const HostTensor& from) {
      const HostTensor real = copy_of(from.view().slice(0, t, t + accepted));
      for (int64_t i = 0; i < real.num_elements(); ++i) to.set(i, real.at(i));
    };
    take(draft.problem.q, source.q);
    take(draft.problem.k, source.k);
    take(draft.problem.v, source.v);
    take(draft.problem.gate, source.gate);
    take(draft.problem.beta, source.beta);
    take(draft.conv_x, conv_x);
    draft.problem.A_log = source.A_log.clone();
    draft.problem.dt_bias = source.dt_bias.clone();
    std::swap(draft.problem.state, pool.problem.state);
    std::swap(draft.window, pool.window);
    if (error.empty()) error = draft.verify(kernel);
    if (error.empty()) error = draft.commit(kernel, {accepted - 1});
    std::swap(draft.problem.state, pool.problem.state);
    std::swap(draft.window, pool.window);
    const int64_t width = source.shape.HV * source.shape.V;
    for (int64_t i = 0; i < accepted * width; ++i) {
      source.out.set(t * width + i, draft.problem.out.at(i));
    }
  }
  Speculation clone() const { return {source.clone(), conv_x.clone(), pool.clone(), {}}; }
};

// P06, and the split rule: prefill = prefill + decodes = verifies + commits. One request speculates
// in slot 3 next to one in slot 6 that never does.
TEST_P(KdaCommit, SpeculationIsPlainDecoding) {
  const char* kernel = GetParam();
  const KdaShape shape = small_shape();
  constexpr int32_t kTokens = 500;
  Speculation run{make_kda_problem(shape, kTokens, 141),
                  HostTensor(DType::kBF16, {kTokens, 10}),
                  make_verify_case(shape, {{0, 1, 1}}, 143),
                  {}};
  fill_normal(run.conv_x, 144);
  Speculation whole = run.clone();
  Speculation other = run.clone();
  whole.extend(KdaPhase::kPrefill, 3, 0, kTokens, kernel);

  run.extend(KdaPhase::kPrefill, 3, 0, 9, kernel);
  int64_t t = 9;
  int64_t other_t = 0;
  const auto extend_other = [&](KdaPhase phase, int32_t tokens) {
    std::swap(other.pool, run.pool);  // both requests live in one pool
    other.extend(phase, 6, other_t, tokens, kernel);
    std::swap(other.pool, run.pool);
    other_t += tokens;
  };
  extend_other(KdaPhase::kPrefill, 9);
  for (int32_t accepted = 3; t + 6 <= kTokens; accepted = 1 + (accepted + 1) % 4) {
    run.verify(3, t, 4, accepted, kernel);
    t += accepted;
    if (other_t < kTokens) extend_other(KdaPhase::kDecode, 1);
    run.extend(KdaPhase::kDecode, 3, t++, 1, kernel);
    if (other_t < kTokens) extend_other(KdaPhase::kDecode, 1);
  }
  while (t < kTokens) run.extend(KdaPhase::kDecode, 3, t++, 1, kernel);
  while (other_t < kTokens) extend_other(KdaPhase::kDecode, 1);
  ASSERT_EQ(run.error + whole.error + other.error, "");
  for (const Speculation* one : {&run, &other}) expect_same(one->source.out, whole.source.out);
  for (int64_t slot : {3, 6}) {
    expect_same(run.pool.slot_state(slot), whole.pool.slot_state(3));
    EXPECT_EQ(bit_difference(run.pool.slot_window(slot), whole.pool.slot_window(3)), "");
  }
}

TEST_P(KdaCommit, SnapshotsOfTheAcceptedPath) {
  const std::vector<KdaRow> rows = {{3, 62, 8}, {5, 0, 4}, {-1, 0, 2}};
  KdaVerifyCase test = make_verify_case(small_shape(), rows, 151);
  test.parent = i32_tensor({-1, 0, 0, 2, 1, 3, 5, 5, -1, 0, 1, 2, -1, 0});
  ASSERT_EQ(test.verify(GetParam()), "");
  // Row 0 accepts node 7 on the path 0, 2, 3, 5, 7; row 1 accepts nothing.
  test.set_plan({0, 0, 0, 1, 0, 2}, {64, 67, 68, 2, 64, 1}, {7, 0, 1, 2, -1, 4});
  const KdaVerifyCase before = test.clone();
  DeviceStatus status;
  ASSERT_EQ(test.commit(GetParam(), {7, -1, 0}, 2, &status), "");
  EXPECT_EQ(status.row_of(DeviceFlag::kSnapshotNotTaken), 0);
  const std::vector<double> taken = {1, 1, 0, 0, 0, 0};
  for (int64_t m = 0; m < 6; ++m) EXPECT_EQ(test.taken.at(m), taken[static_cast<size_t>(m)]) << m;
  std::string error;
  const KdaProblem two = decode_path(before, 0, {0, 2}, GetParam(), error);
  expect_same(test.slot_state(7), two.state.view().slice(0, 3, 4));
  EXPECT_EQ(bit_difference(test.slot_window(7), window_after(before, 0, {0, 2})), "");
  const KdaProblem five = decode_path(before, 0, {0, 2, 3, 5, 7}, GetParam(), error);
  expect_same(test.slot_state(3), five.state.view().slice(0, 3, 4));
  EXPECT_EQ(bit_difference(test.slot_state(0), test.slot_state(3)), "");
  EXPECT_EQ(bit_difference(test.slot_window(0), test.slot_window(3)), "");
  for (int64_t slot : {1, 2, 4, 5, 6}) {
    EXPECT_EQ(bit_difference(test.slot_state(slot), before.slot_state(slot)), "");
    EXPECT_EQ(bit_difference(test.slot_window(slot), before.slot_window(slot)), "");
  }
}

TEST_P(KdaCommit, ThreadsDoNotChangeBits) {
  const std::vector<KdaRow> rows = {{3, 7, 7}, {0, 0, 9}, {-1, 0, 3}, {6, 2, 1}};
  KdaVerifyCase verified = make_verify_case(small_shape(), rows, 153);
  ASSERT_EQ(verified.verify(GetParam()), "");
  KdaVerifyCase one = verified.clone();
  ASSERT_EQ(one.commit(GetParam(), {4, 8, 0, 0}), "");
  for (int threads : {2, 3}) {
    KdaVerifyCase again = verified.clone();
    ASSERT_EQ(again.commit(GetParam(), {4, 8, 0, 0}, threads), "");
    EXPECT_EQ(bit_difference(again.problem.state, one.problem.state), "");
    EXPECT_EQ(bit_difference(again.window, one.window), "");
  }
}

TEST_P(KdaCommit, OverflowOfAnF16PoolIsReported) {
  KdaVerifyCase test = make_verify_case(small_shape(DType::kF16), {{2, 1, 1}, {4, 1, 2}}, 155);
  fill_constant(test.problem.beta, 5.0);
  fill_constant(test.problem.v.view().slice(0, 2, 3), -3e6);
  ASSERT_EQ(test.verify(GetParam()), "");
  DeviceStatus status;
  ASSERT_EQ(test.commit(GetParam(), {0, 0}, 1, &status), "");
  EXPECT_FALSE(status.raised(DeviceFlag::kStateOverflow));
  ASSERT_EQ(test.commit(GetParam(), {0, 1}, 1, &status), "");
  EXPECT_EQ(status.row_of(DeviceFlag::kStateOverflow), 1);
  EXPECT_EQ(status.overflow_slot.load(), 4);
}

}  // namespace
}  // namespace linestate::testing
