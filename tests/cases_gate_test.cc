// Cases P16 to P19 and P34 of docs/cases.md: gates, correlated keys, beta and long runs.
#include "linestate/ops/kda_verify.h"
#include "linestate/ops/replay_ring.h"
#include "ops/kda/kda_verify_case.h"
#include "tests/oracle_case.h"

namespace linestate::testing {
namespace {

TEST(Cases, P16_SaturatedGatesStayFinite) {
  for (const float lower_bound : {-1.0f, -2.0f, -3.0f, -4.0f, -5.0f}) {
    for (const int32_t T : {16, 17, 64, 65, 200}) {
      KdaShape shape = base_kda_shape();
      shape.H = shape.HV = 1;
      shape.V = 32;
      shape.io = shape.out = DType::kF32;
      shape.lower_bound = lower_bound;
      KdaProblem start = make_kda_problem(shape, T, 160);
      fill_constant(start.gate, 50.0);
      fill_constant(start.A_log, 0.0);
      start.set_rows({{2, 64, T}});
      const KdaExpected expected = expect_kda(start);
      for (const std::string& kernel : kKernelRows) {
        KdaProblem p = start.clone();
        ASSERT_EQ(run_kda(KdaPhase::kPrefill, p.params(), kernel), "");
        const std::string what =
            kernel + ", bound " + std::to_string(lower_bound) + ", T " + std::to_string(T);
        expect_close(p.out, expected.out, 1e-6, what);
        expect_close(p.state, expected.state, 5e-7, what);
      }
    }
  }
}

std::string verify_and_commit(KdaVerifyCase& test, const std::string& kernel) {
  const std::string error = test.verify(kernel);
  return error.empty() ? test.commit(kernel, {0}) : error;
}

// beta = 0 and S = 1: the state afterwards is exp(g).
std::vector<double> gates_of(const std::string& path, KdaGate form, float lower_bound,
                             const std::string& kernel) {
  KdaShape shape = small_kda_shape();
  shape.H = shape.HV = 1;
  shape.K = shape.V = 16;
  shape.gate_form = form;
  shape.lower_bound = lower_bound;
  shape.beta_form = KdaBeta::kProbability;
  KdaVerifyCase test = make_verify_case(shape, {{3, 5, 1}}, 170);
  KdaProblem& p = test.problem;
  for (HostTensor* t : {&p.beta, &p.A_log, &p.dt_bias}) fill_constant(*t, 0.0);
  fill_constant(p.state, 1.0);
  for (int64_t c = 0; c < 16; ++c) p.gate.set(c, c % 3 == 0 ? -4.0 : c % 3 == 1 ? 0.0 : 4.0);
  std::string error;
  if (path == "prefill") error = run_kda(KdaPhase::kPrefill, p.params(), kernel);
  if (path == "decode") error = run_kda(KdaPhase::kDecode, p.params(), kernel);
  if (path == "verify") error = verify_and_commit(test, kernel);
  EXPECT_EQ(error, "");
  std::vector<double> out;
  for (int64_t c = 0; c < 3; ++c) out.push_back(std::log(p.state.at(3 * 256 + c)));
  return out;
}

TEST(Cases, P17_BothGateFormulasInEveryPath) {
  const std::vector<double> bounded = {-0.0899310498, -2.5, -4.9100689502};
  const std::vector<double> softplus = {-0.0181499279, -0.6931471806, -4.0181499279};
  for (const std::string& kernel : kKernelRows) {
    for (const std::string path : {"prefill", "decode", "verify"}) {
      const auto a = gates_of(path, KdaGate::kBounded, -5.0f, kernel);
      const auto b = gates_of(path, KdaGate::kSoftplus, 0.0f, kernel);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(a[i], bounded[i], 1e-6) << path << ", " << kernel;
        EXPECT_NEAR(b[i], softplus[i], 1e-6) << path << ", " << kernel;
      }
    }
    // A bound with the other formula, or none with this one, is refused by name.
    KdaProblem p = make_kda_problem(small_kda_shape(), 1, 171);
    p.set_rows({{0, 0, 1}});
    KdaParams params = p.params();
    params.gate_form = KdaGate::kSoftplus;
    EXPECT_NE(run_kda(KdaPhase::kDecode, params, kernel).find("lower_bound"), std::string::npos);
    params.gate_form = KdaGate::kBounded;
    params.lower_bound = 0.0f;
    EXPECT_NE(run_kda(KdaPhase::kPrefill, params, kernel).find("lower_bound"), std::string::npos);
  }
}

KdaProblem one_key_problem(int32_t T, DType io, double noise) {
  KdaShape shape = base_kda_shape();
  shape.H = shape.HV = 1;
  shape.V = 64;
  shape.io = io;
  shape.gate_dtype = DType::kF32;
  shape.out = io;
  shape.gate_form = KdaGate::kActivated;
  shape.lower_bound = 0.0f;
  shape.beta_form = KdaBeta::kProbability;
  shape.qk_normalized = true;
  KdaProblem p = make_kda_problem(shape, T, 180);
  fill_constant(p.gate, 0.0);
  fill_constant(p.beta, 1.0);
  fill_constant(p.k, 0.0);
  HostTensor jitter(DType::kF32, p.k.shape());
  fill_normal(jitter, 181, noise);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t c = 0; c < 128; ++c) {  // 64 entries of +-1/8: a unit vector, exact in bf16
      const double unit = c % 2 == 0 ? (c % 4 == 0 ? 0.125 : -0.125) : 0.0;
      p.k.set(t * 128 + c, unit + jitter.at(t * 128 + c));
    }
  }
  p.set_rows({{1, 0, T}});
  return p;
}

TEST(Cases, P18_IdenticalKeys) {
  for (const std::string& kernel : kKernelRows) {
    for (const DType io : {DType::kF32, DType::kBF16}) {
      for (const int32_t T : {16, 64, 200}) {
        KdaProblem p = one_key_problem(T, io, 0.0);
        ASSERT_EQ(run_kda(KdaPhase::kPrefill, p.params(), kernel), "");
        HostTensor out(DType::kF64, p.out.shape());
        HostTensor state(DType::kF64, {1, 1, 64, 128});
        for (int64_t t = 0; t < T; ++t) {
          double dot = 0.0;
          for (int64_t c = 0; c < 128; ++c) dot += p.q.at(t * 128 + c) * p.k.at(c);
          for (int64_t r = 0; r < 64; ++r) {
            out.set(t * 64 + r, dot * p.v.at(t * 64 + r) / std::sqrt(128.0));
          }
        }
        for (int64_t i = 0; i < 64 * 128; ++i) {
          state.set(i, p.v.at((T - 1) * 64 + i / 128) * p.k.at(i % 128));
        }
        expect_close(p.out, out, 1e-6, "closed form");
        expect_close(pool_slot(p.state, 1), state, 5e-7, "closed form");
        KdaProblem noisy = one_key_problem(T, io, 0.01 / std::sqrt(128.0));
        // A key longer than a unit by rounding makes the product of corrections grow, not the
        // error.
        expect_kda_call(KdaPhase::kPrefill, noisy, kernel, "1 % noise");
      }
    }
  }
}

TEST(Cases, P19_BetaStaysInF32) {
  const double expected = 1.0 / (1.0 + std::exp(-0.5));
  for (const std::string& kernel : kKernelRows) {
    for (const std::string path : {"prefill", "decode", "verify"}) {
      KdaShape shape = base_kda_shape();
      shape.gate_dtype = DType::kBF16;
      shape.qk_normalized = true;
      KdaVerifyCase test = make_verify_case(shape, {{2, 0, 1}}, 190);
      KdaProblem& p = test.problem;
      fill_constant(p.k, 0.0);
      for (int64_t h = 0; h < 4; ++h) p.k.set(h * 128 + 7, 1.0);
      fill_constant(p.v, 1.0);
      fill_constant(p.beta, 0.5);
      std::string error;
      if (path == "prefill") error = run_kda(KdaPhase::kPrefill, p.params(), kernel);
      if (path == "decode") error = run_kda(KdaPhase::kDecode, p.params(), kernel);
      if (path == "verify") error = verify_and_commit(test, kernel);
      ASSERT_EQ(error, "");
      const int64_t base = 2 * 4 * 128 * 128;
      for (int64_t row = 0; row < 4 * 128; ++row) {
        EXPECT_NEAR(p.state.at(base + row * 128 + 7), expected, 1e-7) << path << ", " << kernel;
        EXPECT_EQ(p.state.at(base + row * 128 + 8), 0.0);
      }
    }
  }
}

TEST(Cases, P19_EightThousandDecodesArePrefill) {
  constexpr int32_t kSteps = 8192;
  KdaShape shape = small_kda_shape();
  shape.H = shape.HV = 1;
  shape.K = shape.V = 64;
  shape.gate_form = KdaGate::kActivated;
  shape.lower_bound = 0.0f;
  KdaProblem prefill = make_kda_problem(shape, kSteps, 191);
  fill_constant(prefill.gate, -1e-4);  // decay 0.9999
  KdaProblem decode = prefill.clone();
  prefill.set_rows({{1, 0, kSteps}});
  const KdaExpected expected = expect_kda(prefill);
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, prefill.params(), "cpu"), "");
  for (int64_t t = 0; t < kSteps; ++t) {
    decode.set_rows({{1, t, 1}});
    ASSERT_EQ(run_kda(KdaPhase::kDecode, slice_tokens(decode, t, t + 1), "cpu"), "");
  }
  expect_close(prefill.state, expected.state, 5e-5, "prefill");
  expect_close(decode.state, expected.state, 5e-5, "decode");
  expect_close(decode.state, prefill.state, 5e-5, "decode and prefill");
  KdaProblem ref = decode.clone();
  ref.set_rows({{1, 0, kSteps}});
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, ref.params(), "ref"), "");
  expect_close(ref.state, expected.state, 5e-5, "ref");
}

// One long row on few heads, decays near 1 and strong ones: the serial scan, whatever was cut.
TEST(Cases, P34_OneLongRowIsTheSerialScanForAnyDecay) {
  for (const float lower_bound : {-5.0f, -1.0f}) {
    for (const double raw_gate : {0.0, -12.0}) {
      KdaShape shape = small_kda_shape();
      shape.H = shape.HV = 2;
      shape.K = shape.V = 32;
      shape.lower_bound = lower_bound;
      KdaProblem p = make_kda_problem(shape, 4096, 340);
      fill_normal(p.gate, 341, 1.0, raw_gate);
      p.set_rows({{1, 0, 4096}});
      expect_kda_call(KdaPhase::kPrefill, p, "cpu", "one long row", 5e-5, 5e-5);
    }
  }
}

}  // namespace
}  // namespace linestate::testing
