// Gate and beta: both formulas in both phases, saturation at the bound, long horizons.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/kda_problem.h"

namespace linestate::testing {
namespace {

struct Case {
  KdaPhase phase;
  const char* kernel;
};

class KdaGatePaths : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    All, KdaGatePaths,
    ::testing::Values(Case{KdaPhase::kPrefill, "cpu"}, Case{KdaPhase::kPrefill, "ref"},
                      Case{KdaPhase::kDecode, "cpu"}, Case{KdaPhase::kDecode, "ref"}),
    [](const auto& info) {
      return std::string(info.param.phase == KdaPhase::kPrefill ? "prefill_" : "decode_") +
             info.param.kernel;
    });

// One resumed token, one head, K = V = 16, A_log = dt_bias = 0.
KdaProblem one_token(KdaGate form) {
  KdaShape shape;
  shape.H = shape.HV = 1;
  shape.K = shape.V = 16;
  shape.gate_form = form;
  shape.lower_bound = form == KdaGate::kBounded ? -5.0f : 0.0f;
  shape.slots = 1;
  KdaProblem p = make_kda_problem(shape, 1, 3);
  fill_constant(p.A_log, 0.0);
  fill_constant(p.dt_bias, 0.0);
  p.set_rows({{0, 1, 1}});
  return p;
}

// P17: g is read off the state through CF3 (beta 0, S 1).
TEST_P(KdaGatePaths, BothFormulas) {
  struct Value {
    KdaGate form;
    double x, g, tolerance;
  };
  for (const Value& value :
       {Value{KdaGate::kBounded, -4.0, -0.0899, 5e-5}, Value{KdaGate::kBounded, 0.0, -2.5, 1e-6},
        Value{KdaGate::kBounded, 4.0, -4.9101, 5e-5},
        Value{KdaGate::kSoftplus, -4.0, -0.01815, 5e-6},
        Value{KdaGate::kSoftplus, 0.0, -0.6931, 5e-5},
        Value{KdaGate::kSoftplus, 4.0, -4.0181, 6e-5},
        Value{KdaGate::kActivated, -1.25, -1.25, 1e-6}}) {
    KdaProblem p = one_token(value.form);
    p.shape.beta_form = KdaBeta::kProbability;
    fill_constant(p.beta, 0.0);
    fill_constant(p.state, 1.0);
    fill_constant(p.gate, value.x);
    ASSERT_EQ(run_kda(GetParam().phase, p.params(), GetParam().kernel), "");
    const double softplus = value.x + std::log1p(std::exp(-value.x));
    const double exact = value.form == KdaGate::kBounded    ? -5.0 / (1.0 + std::exp(-value.x))
                         : value.form == KdaGate::kSoftplus ? -softplus
                                                            : value.x;
    EXPECT_NEAR(std::log(p.state.at(37)), value.g, value.tolerance) << value.x;
    EXPECT_NEAR(std::log(p.state.at(37)), exact, 1e-6) << value.x;
  }
}

// P19: beta = sigmoid(0.5) stays f32; 0.621094 would be bf16.
TEST_P(KdaGatePaths, BetaIsNotRounded) {
  KdaProblem p = one_token(KdaGate::kSoftplus);
  p.set_rows({{0, 0, 1}});
  p.beta = HostTensor(DType::kF32, {1, 1});
  p.beta.set(0, 0.5);
  fill_constant(p.k, 0.0);
  p.k.set(5, 1.0);
  p.shape.qk_normalized = true;
  fill_constant(p.v, 1.0);
  ASSERT_EQ(run_kda(GetParam().phase, p.params(), GetParam().kernel), "");
  for (int64_t v = 0; v < 16; ++v) {
    EXPECT_NEAR(p.state.at(v * 16 + 5), 0.622459, 5e-7);
    EXPECT_EQ(p.state.at(v * 16 + 4), 0.0);
  }
}

// Every term at its extreme stays finite, and zero keys do nothing.
TEST_P(KdaGatePaths, ExtremeInputsStayFinite) {
  for (KdaGate form : {KdaGate::kSoftplus, KdaGate::kBounded}) {
    for (double x : {-1e30, -100.0, -40.0, 40.0, 100.0, 1e30}) {
      KdaProblem p = one_token(form);
      fill_constant(p.gate, x);
      fill_constant(p.beta, -x);
      fill_constant(p.A_log, 3.0);
      fill_constant(p.k, 0.0);
      fill_constant(p.q, 0.0);
      ASSERT_EQ(run_kda(GetParam().phase, p.params(), GetParam().kernel), "");
      EXPECT_TRUE(compare(p.state, p.state).finite) << x;
      EXPECT_EQ(nonzero(p.out), "") << x;
    }
  }
}

// P16: g saturated at the bound; a chunk-wide exponent would overflow from -3 on.
TEST(KdaGateBound, SaturatedGateMatchesRef) {
  for (float lower_bound : {-1.0f, -2.0f, -3.0f, -4.0f, -5.0f}) {
    for (int32_t T : {16, 17, 64, 65, 200}) {
      KdaShape shape;
      shape.H = shape.HV = 2;
      shape.K = shape.V = 64;
      shape.io = shape.gate_dtype = DType::kBF16;
      shape.gate_form = KdaGate::kBounded;
      shape.lower_bound = lower_bound;
      KdaProblem p = make_kda_problem(shape, T, 51);
      fill_constant(p.gate, 50.0);
      p.set_rows({{1, 3, T}});
      EXPECT_EQ(check_kda_against_ref(KdaPhase::kPrefill, p, "cpu"), "") << lower_bound << ' ' << T;
    }
  }
}

// Gates far beyond any bound: half of the channels forget everything in a token.
TEST(KdaGateBound, StrongSoftplusGatesMatchRef) {
  KdaShape shape;
  shape.K = shape.V = 128;
  KdaProblem p = make_kda_problem(shape, 150, 52);
  fill_normal(p.gate, 53, 40.0);
  fill_constant(p.A_log, 1.5);
  p.set_rows({{1, 9, 150}});
  EXPECT_EQ(check_kda_against_ref(KdaPhase::kPrefill, p, "cpu"), "");
}

// P19: 8192 steps with retention above 0.999, decode after decode against prefill.
TEST(KdaGateLongRun, DecodesAndPrefillAgree) {
  constexpr int64_t kSteps = 8192;
  KdaShape shape;
  shape.H = shape.HV = 1;
  shape.K = shape.V = 64;
  shape.io = DType::kBF16;
  shape.gate_dtype = DType::kBF16;
  shape.slots = 1;
  KdaProblem p = make_kda_problem(shape, kSteps, 61);
  fill_normal(p.gate, 62, 0.5, -8.0);
  fill_constant(p.A_log, -1.0);
  fill_constant(p.dt_bias, 0.0);
  fill_constant(p.state, 0.0);
  p.set_rows({{0, 0, kSteps}});
  KdaProblem exact = p.clone();
  KdaProblem steps = p.clone();
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, exact.params(), "ref"), "");
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, p.params(), "cpu"), "");
  steps.set_rows({{0, 1, 1}});
  KdaParams call = steps.params();
  const KdaParams all = call;
  for (int64_t t = 0; t < kSteps; ++t) {
    call.q = all.q.slice(0, t, t + 1);
    call.k = all.k.slice(0, t, t + 1);
    call.v = all.v.slice(0, t, t + 1);
    call.gate = all.gate.slice(0, t, t + 1);
    call.beta = all.beta.slice(0, t, t + 1);
    call.out = all.out.slice(0, t, t + 1);
    ASSERT_EQ(run_kda(KdaPhase::kDecode, call, "cpu"), "");
  }
  EXPECT_LE(compare(steps.state, p.state).rel, 5e-5);
  EXPECT_LE(compare(p.state, exact.state).rel, 5e-5);
  EXPECT_LE(compare(steps.state, exact.state).rel, 5e-5);
  EXPECT_LE(compare(steps.out, p.out).rel, 5e-5);
  RecordProperty("decode_to_prefill", compare(steps.state, p.state).text());
  RecordProperty("prefill_to_ref", compare(p.state, exact.state).text());
  RecordProperty("decode_to_ref", compare(steps.state, exact.state).text());
}

}  // namespace
}  // namespace linestate::testing
