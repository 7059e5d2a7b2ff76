// Cases P04, P06, P08 and P09 of docs/cases.md: verify, commit and replayed batches.
#include <map>

#include "backends/backend_engine_fixture.h"
#include "ops/kda/kda_verify_case.h"
#include "tests/oracle_case.h"

namespace linestate::testing {
namespace {

Piece extend(int request, int32_t slot, int64_t start, int32_t tokens) {
  return {request, {slot, RowKind::kExtend, start, tokens, -1, -1}, {}};
}
Piece decode(int request, int32_t slot, int64_t start) {
  return {request, {slot, RowKind::kDecode, start, 1, -1, -1}, {}};
}
Piece verify(int request, int32_t slot, int64_t start, int32_t nodes, int32_t valid = -1) {
  return {request, {slot, RowKind::kVerify, start, nodes, valid, -1}, {}};
}

EngineOptions f32_engine(const std::string& kernel) {
  EngineOptions options;
  options.io = DType::kF32;
  options.kernel = kernel;
  options.threads = 1;
  return options;
}

/// Bits on `ref`; on `cpu` windows by bits, outputs and states to the tolerances of OPS.
void expect_equal_runs(const std::vector<HostTensor>& a, const std::vector<HostTensor>& b,
                       const std::string& kernel, double limit, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (kernel == "ref") {
      EXPECT_EQ(bit_difference(a[i], b[i]), "") << what << ", tensor " << i;
    } else {
      EXPECT_LE(compare(a[i], b[i]).rel, limit) << what << ", tensor " << i;
    }
  }
}

// A captured graph of 8 verify rows, replayed with 8, 3 and 8 live rows.
struct Replayed {
  std::vector<HostTensor> outputs;
  std::map<int64_t, std::vector<HostTensor>> slots;
};

std::vector<Piece> eight_rows(const std::vector<int64_t>& held) {
  std::vector<Piece> out;
  for (int32_t s = 0; s < 8; ++s) out.push_back(verify(s, s, held[static_cast<size_t>(s)], 4));
  return out;
}

void bring_up(Engine& engine) {
  std::vector<Piece> prompts;
  for (int32_t s = 0; s < 8; ++s) prompts.push_back(extend(s, s, 0, 3 + s));
  ASSERT_TRUE(engine.run(prompts).ok());
  ASSERT_TRUE(engine.run(eight_rows({3, 4, 5, 6, 7, 8, 9, 10})).ok());
  ASSERT_TRUE(engine.commit({3, 3, 3, 3, 3, 3, 3, 3}).ok());
}

TEST(Cases, P04_AReplayReadsThisStepsRowsOnly) {
  for (const std::string& kernel : kKernelRows) {
    Engine graph(f32_engine(kernel));
    Engine eager(f32_engine(kernel));
    bring_up(graph);
    bring_up(eager);
    const void* slots = graph.metadata().segments()[0].rows.slot.data;
    for (const TensorView& plane : graph.pool().planes()) {  // freed slots hold canaries
      for (const int64_t s : {0, 2, 3, 4, 7}) fill_constant(plane.slice(0, s, s + 1), 77.0);
    }
    std::map<int64_t, std::vector<HostTensor>> canaries;
    for (const int64_t s : {0, 2, 3, 4, 7}) canaries[s] = graph.slot(s);

    const std::vector<Piece> live = {verify(5, 5, 12, 4), verify(1, 1, 8, 4), verify(6, 6, 13, 4)};
    std::vector<Piece> padded = live;
    for (int n = 3; n < 8; ++n) padded.push_back(verify(n, kPadSlot, 1, 4, 0));
    ASSERT_TRUE(graph.run(padded).ok());
    ASSERT_TRUE(eager.run(live).ok());
    EXPECT_EQ(graph.metadata().segments()[0].rows.slot.data, slots) << "a captured address moved";
    expect_same(graph.outputs(0, 12), eager.outputs(0, 12), "replay with three live rows");
    for (const HostTensor& out : graph.outputs(12, 32)) EXPECT_EQ(nonzero(out), "");
    ASSERT_TRUE(graph.commit({0, 0, 0, -1, -1, -1, -1, -1}).ok());
    ASSERT_TRUE(eager.commit({0, 0, 0}).ok());
    for (const int64_t s : {5, 1, 6}) expect_same(graph.slot(s), eager.slot(s), "live slot");
    for (const auto& [s, bytes] : canaries) expect_same(graph.slot(s), bytes, "freed slot");

    // Eight rows again: fresh requests in the freed slots, the three others go on.
    std::vector<Piece> again = eight_rows({0, 9, 0, 0, 0, 13, 14, 0});
    ASSERT_TRUE(graph.run(again).ok());
    ASSERT_TRUE(graph.commit({3, 3, 3, 3, 3, 3, 3, 3}).ok());
    ASSERT_TRUE(eager.run({again[1], again[5], again[6]}).ok());
    ASSERT_TRUE(eager.commit({3, 3, 3}).ok());
    for (const int64_t s : {5, 1, 6}) expect_same(graph.slot(s), eager.slot(s), "eight again");
    Engine fresh(f32_engine(kernel));
    ASSERT_TRUE(fresh.run({again[0]}).ok());
    ASSERT_TRUE(fresh.commit({3}).ok());
    expect_same(graph.slot(0), fresh.slot(0), "fresh in a freed slot");
  }
}

// Request 1 speculates, request 2 decodes in the same batches; two engines without speculation.
class SpeculatingPair {
 public:
  explicit SpeculatingPair(const std::string& kernel)
      : kernel_(kernel), spec_(f32_engine(kernel)), plain_(f32_engine(kernel)) {
    for (Engine* engine : {&spec_, &plain_}) {
      EXPECT_TRUE(engine->run({extend(1, 5, 0, 9), extend(2, 2, 0, 5)}).ok());
    }
  }
  int64_t position() const { return position_; }

  void step_verify(int32_t accepted) {
    ASSERT_TRUE(spec_.run({decode(2, 2, other_), verify(1, 5, position_, 4)}).ok());
    const auto outputs = spec_.outputs(1, 1 + accepted);
    ASSERT_TRUE(spec_.commit({accepted - 1}).ok());
    for (int32_t i = 0; i < accepted; ++i) {
      ASSERT_TRUE(plain_.run({decode(1, 5, position_ + i)}).ok());
      const auto expected = plain_.outputs(0, 1);
      for (size_t layer = 0; layer < expected.size(); ++layer) {
        const ConstTensorView got = outputs[layer].view().slice(0, i, i + 1);
        EXPECT_LE(compare(got, expected[layer]).rel, kernel_ == "ref" ? 0.0 : 2e-6)
            << "position " << position_ + i << ", layer " << layer;
      }
    }
    ASSERT_TRUE(plain_.run({decode(2, 2, other_)}).ok());
    position_ += accepted;
    ++other_;
    check();
  }
  void step_decode() {
    ASSERT_TRUE(spec_.run({decode(1, 5, position_), decode(2, 2, other_)}).ok());
    ASSERT_TRUE(plain_.run({decode(1, 5, position_), decode(2, 2, other_)}).ok());
    expect_equal_runs(spec_.outputs(0, 2), plain_.outputs(0, 2), kernel_, 2e-6, "decode");
    ++position_;
    ++other_;
    check();
  }

 private:
  void check() {
    const std::string what = "position " + std::to_string(position_);
    expect_equal_runs(spec_.slot(5), plain_.slot(5), kernel_, 5e-5, what);
    EXPECT_EQ(bit_difference(spec_.slot(5)[1], plain_.slot(5)[1]), "") << what << ", window";
    expect_same(spec_.slot(2), plain_.slot(2), what + ", request 2");
  }

  std::string kernel_;
  Engine spec_, plain_;
  int64_t position_ = 9;
  int64_t other_ = 5;
};

TEST(Cases, P06_VerifyThenDecodeIsPlainDecoding) {
  for (const std::string& kernel : kKernelRows) {
    SpeculatingPair pair(kernel);
    pair.step_verify(3);
    pair.step_decode();
    pair.step_verify(1);
    pair.step_decode();
  }
}

TEST(Cases, P06_FiveHundredTokensOfMixedSteps) {
  for (const std::string& kernel : kKernelRows) {
    SpeculatingPair pair(kernel);
    Random random(6);
    while (pair.position() < 509 && !::testing::Test::HasFailure()) {
      if (random.integer(0, 2) == 0) {
        pair.step_decode();
      } else {
        pair.step_verify(static_cast<int32_t>(random.integer(1, 4)));
      }
    }
  }
}

// Window [a, b, c] and tokens x1..x4 with L accepted, over q, k and v channels.
void check_p08(int32_t accepted, const std::string& kernel) {
  KdaShape shape = base_kda_shape();
  shape.io = shape.out = DType::kF32;
  constexpr int64_t kChannels = 3 * 4 * 128;
  KdaVerifyCase test = make_verify_case(shape, {{3, 20, 4}}, 80);
  test.conv_x = HostTensor(DType::kBF16, {4, kChannels});
  test.window = HostTensor(DType::kBF16, {8, kChannels, 3});
  fill_normal(test.conv_x, 81);
  fill_normal(test.window, 82);
  HostTensor expected_window = test.window.clone();
  for (int64_t c = 0; c < kChannels; ++c) {
    std::vector<double> history;
    for (int64_t j = 0; j < 3; ++j) history.push_back(test.window.at((3 * kChannels + c) * 3 + j));
    for (int64_t t = 0; t < accepted; ++t) history.push_back(test.conv_x.at(t * kChannels + c));
    for (int64_t j = 0; j < 3; ++j) {
      expected_window.set((3 * kChannels + c) * 3 + j,
                          history[history.size() - 3 + static_cast<size_t>(j)]);
    }
  }
  KdaProblem prefix = test.problem.clone();
  prefix.num_valid = i32_tensor({accepted});
  const KdaExpected expected = expect_kda(prefix);
  KdaProblem plain = test.problem.clone();
  ASSERT_EQ(test.verify(kernel), "");
  ASSERT_EQ(test.commit(kernel, {accepted - 1}), "");
  EXPECT_EQ(bit_difference(test.window, expected_window), "") << accepted;
  expect_close(test.problem.state, expected.state, 5e-7, "state after commit");

  KdaProblem next = make_kda_problem(shape, 1, 83);  // token y
  next.set_rows({{3, 20 + accepted, 1}});
  next.state = test.problem.state.clone();
  ASSERT_EQ(run_kda(KdaPhase::kDecode, next.params(), kernel), "");
  for (int32_t t = 0; t < accepted; ++t) {
    plain.set_rows({{3, 20 + t, 1}});
    ASSERT_EQ(run_kda(KdaPhase::kDecode, slice_tokens(plain, t, t + 1), kernel), "");
  }
  KdaProblem last = make_kda_problem(shape, 1, 83);
  last.set_rows({{3, 20 + accepted, 1}});
  last.state = plain.state.clone();
  ASSERT_EQ(run_kda(KdaPhase::kDecode, last.params(), kernel), "");
  expect_close(next.out, last.out, 1e-6, "decode of y");
  if (kernel == "ref") {
    EXPECT_EQ(bit_difference(next.out, last.out), "");
    EXPECT_EQ(bit_difference(next.state, last.state), "");
  }
}

TEST(Cases, P08_CommitMovesStateAndWindowTogether) {
  for (const std::string& kernel : kKernelRows) {
    for (const int32_t accepted : {1, 2, 3, 4}) check_p08(accepted, kernel);
  }
}

TEST(Cases, P09_PlaceholdersOfAVerifyRowLeaveNoTrace) {
  for (const std::string& kernel : kKernelRows) {
    Engine wide(f32_engine(kernel));
    Engine narrow(f32_engine(kernel));
    for (Engine* engine : {&wide, &narrow}) {
      ASSERT_TRUE(engine->run({extend(1, 2, 0, 12), extend(2, 5, 0, 30)}).ok());
    }
    ASSERT_TRUE(wide.run({verify(1, 2, 12, 4), verify(2, 5, 30, 4, 1)}).ok());
    const auto real = wide.outputs(4, 5);
    for (const HostTensor& out : wide.outputs(5, 8)) EXPECT_EQ(nonzero(out), "");
    ASSERT_TRUE(wide.commit({2, 0}).ok());
    ASSERT_TRUE(narrow.run({decode(2, 5, 30)}).ok());
    expect_equal_runs(real, narrow.outputs(0, 1), kernel, 2e-6, "the real token");
    expect_equal_runs(wide.slot(5), narrow.slot(5), kernel, 5e-7, "one token");
    EXPECT_EQ(bit_difference(wide.slot(5)[1], narrow.slot(5)[1]), "") << "window";
    for (int64_t t = 12; t < 15; ++t) ASSERT_TRUE(narrow.run({decode(1, 2, t)}).ok());
    expect_equal_runs(wide.slot(2), narrow.slot(2), kernel, 5e-7, "the real verify row");
  }
}

}  // namespace
}  // namespace linestate::testing
