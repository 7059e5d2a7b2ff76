// Prefill against the oracle over dtypes, sizes and modes, and both against closed forms.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/message.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/kda_problem.h"

namespace linestate::testing {
namespace {

constexpr KdaPhase kPrefill = KdaPhase::kPrefill;

// Lengths around the block and the chunk, fresh and resumed on and off the grid.
const std::vector<KdaRow> kMixedRows = {{3, 0, 1},  {0, 5, 15},  {6, 64, 16}, {1, 0, 17},
                                        {4, 37, 0}, {7, 63, 63}, {2, 128, 65}};

struct Mode {
  std::string name;
  KdaShape shape;
};

KdaShape shape_of(int64_t H, int64_t HV, int64_t K, int64_t V) {
  KdaShape shape;
  shape.H = H;
  shape.HV = HV;
  shape.K = K;
  shape.V = V;
  return shape;
}

std::vector<Mode> modes() {
  std::vector<Mode> out;
  for (DType io : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (DType state : {DType::kF32, DType::kBF16, DType::kF16}) {
      KdaShape shape;
      shape.io = io;
      shape.gate_dtype = state == DType::kBF16 ? io : DType::kF32;
      shape.state = state;
      shape.out = io;
      shape.gate_form = KdaGate::kBounded;
      shape.lower_bound = -5.0f;
      out.push_back({concat(dtype_name(io), "_state_", dtype_name(state)), shape});
    }
  }
  for (KdaGate gate : {KdaGate::kSoftplus, KdaGate::kBounded, KdaGate::kActivated}) {
    for (KdaBeta beta : {KdaBeta::kLogits, KdaBeta::kProbability}) {
      KdaShape shape;
      shape.gate_form = gate;
      shape.beta_form = beta;
      shape.lower_bound = gate == KdaGate::kBounded ? -5.0f : 0.0f;
      shape.qk_normalized = beta == KdaBeta::kProbability;
      out.push_back(
          {concat("gate", static_cast<int>(gate), "_beta", static_cast<int>(beta)), shape});
    }
  }
  for (const KdaShape& shape :
       {shape_of(1, 1, 128, 128), shape_of(1, 3, 16, 48), shape_of(2, 6, 48, 16),
        shape_of(1, 1, 256, 32), shape_of(1, 1, 32, 256), shape_of(3, 3, 112, 80)}) {
    out.push_back({concat("H", shape.H, "_HV", shape.HV, "_K", shape.K, "_V", shape.V), shape});
  }
  return out;
}

class KdaPrefillModes : public ::testing::TestWithParam<Mode> {};

TEST_P(KdaPrefillModes, CpuMatchesRef) {
  KdaProblem problem = make_kda_problem(GetParam().shape, total_tokens(kMixedRows), 11);
  problem.set_rows(kMixedRows);
  EXPECT_EQ(check_kda_against_ref(kPrefill, problem, "cpu"), "");
}

TEST_P(KdaPrefillModes, RefRoundsOnlyAtTheStores) {
  KdaProblem problem = make_kda_problem(GetParam().shape, total_tokens(kMixedRows), 12);
  problem.set_rows(kMixedRows);
  EXPECT_EQ(check_kda_against_ref(kPrefill, problem, "ref", 0.0, 0.0), "");
}

INSTANTIATE_TEST_SUITE_P(All, KdaPrefillModes, ::testing::ValuesIn(modes()),
                         [](const auto& info) { return info.param.name; });

class KdaPrefillKernel : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, KdaPrefillKernel, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

// One fresh row of T tokens, one head, K = 64, V = 48, probabilities for beta, raw decays.
KdaProblem plain_problem(int64_t T, uint64_t seed) {
  KdaShape shape = shape_of(1, 1, 64, 48);
  shape.gate_form = KdaGate::kActivated;
  shape.beta_form = KdaBeta::kProbability;
  shape.qk_normalized = true;
  shape.slots = 2;
  KdaProblem problem = make_kda_problem(shape, T, seed);
  problem.set_rows({{1, 0, static_cast<int32_t>(T)}});
  return problem;
}

std::vector<double> unit_vector(int64_t K, uint64_t seed) {
  Random random(seed);
  std::vector<double> k(static_cast<size_t>(K));
  double sum = 0.0;
  for (double& x : k) {
    x = random.normal();
    sum += x * x;
  }
  for (double& x : k) x /= std::sqrt(sum);
  return k;
}

double dot_row(const HostTensor& tensor, int64_t t, const std::vector<double>& x) {
  double sum = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum += tensor.at(t * static_cast<int64_t>(x.size()) + static_cast<int64_t>(i)) * x[i];
  }
  return sum;
}

HostTensor slot_state(const KdaProblem& problem, int64_t slot) {
  return copy_of(problem.state.view().select(0, slot));
}

// CF1: one unit key for every token, beta 1, no decay: o_t = scale (q_t . k) v_t, S_T = v_T k^T.
// The triangular system has ones everywhere below its diagonal: a doubling inverse explodes.
TEST_P(KdaPrefillKernel, EqualKeysRecallTheLastValue) {
  for (int64_t T : {16, 64, 200}) {
    KdaProblem p = plain_problem(T, 21);
    const std::vector<double> k = unit_vector(64, 5);
    for (int64_t i = 0; i < p.k.num_elements(); ++i) p.k.set(i, k[static_cast<size_t>(i % 64)]);
    fill_constant(p.gate, 0.0);
    fill_constant(p.beta, 1.0);
    ASSERT_EQ(run_kda(kPrefill, p.params(), GetParam()), "");
    HostTensor out(DType::kF64, {T, 1, 48});
    HostTensor state(DType::kF64, {1, 48, 64});
    for (int64_t t = 0; t < T; ++t) {
      const double weight = 0.125 * dot_row(p.q, t, k);
      for (int64_t v = 0; v < 48; ++v) out.set(t * 48 + v, weight * p.v.at(t * 48 + v));
    }
    for (int64_t v = 0; v < 48; ++v) {
      for (int64_t i = 0; i < 64; ++i) {
        state.set(v * 64 + i, p.v.at((T - 1) * 48 + v) * k[static_cast<size_t>(i)]);
      }
    }
    EXPECT_LE(compare(p.out, out).rel, 1e-6) << "T " << T << ' ' << compare(p.out, out).text();
    // Nothing decays here, so every rounding of the run stays: over 200 tokens f32 without fused
    // multiply-adds reaches 6.7e-7.
    EXPECT_LE(compare(slot_state(p, 1), state).rel, T > 64 ? 1e-6 : 5e-7) << "T " << T;
  }
}

// CF2: everything is forgotten at once: o_t = scale beta_t (q_t . k_t) v_t, S_T = beta_T v_T k_T^T.
TEST_P(KdaPrefillKernel, StrongDecayLeavesOneToken) {
  const int64_t T = 70;
  KdaProblem p = plain_problem(T, 22);
  fill_uniform(p.gate, 9, -200.0, -40.0);
  ASSERT_EQ(run_kda(kPrefill, p.params(), GetParam()), "");
  HostTensor out(DType::kF64, {T, 1, 48});
  HostTensor state(DType::kF64, {1, 48, 64});
  for (int64_t t = 0; t < T; ++t) {
    double qk = 0.0;
    for (int64_t i = 0; i < 64; ++i) qk += p.q.at(t * 64 + i) * p.k.at(t * 64 + i);
    for (int64_t v = 0; v < 48; ++v) {
      const double u = p.beta.at(t) * p.v.at(t * 48 + v);
      out.set(t * 48 + v, 0.125 * qk * u);
      for (int64_t i = 0; i < 64; ++i) state.set(v * 64 + i, u * p.k.at(t * 64 + i));
    }
  }
  EXPECT_LE(compare(p.out, out).rel, 1e-6) << compare(p.out, out).text();
  EXPECT_LE(compare(slot_state(p, 1), state).rel, 5e-7);
}

// CF3: beta 0: S_T = S_0 diag(exp(sum g)).
TEST_P(KdaPrefillKernel, WithoutBetaTheStateOnlyDecays) {
  const int64_t T = 90;
  KdaProblem p = plain_problem(T, 23);
  p.set_rows({{1, 7, static_cast<int32_t>(T)}});
  fill_uniform(p.gate, 9, -0.05, 0.0);
  fill_constant(p.beta, 0.0);
  HostTensor state = cast_of(p.state.view().select(0, 1), DType::kF64);
  for (int64_t i = 0; i < 64; ++i) {
    double sum = 0.0;
    for (int64_t t = 0; t < T; ++t) sum += p.gate.at(t * 64 + i);
    for (int64_t v = 0; v < 48; ++v) {
      state.set(v * 64 + i, state.at(v * 64 + i) * std::exp(sum));
    }
  }
  ASSERT_EQ(run_kda(kPrefill, p.params(), GetParam()), "");
  EXPECT_LE(compare(slot_state(p, 1), state).rel, 1e-6) << compare(slot_state(p, 1), state).text();
}

// P20: an asymmetric rank-one start with V != K shows a transposed state at once.
TEST_P(KdaPrefillKernel, StateIsValueByKey) {
  KdaProblem p = plain_problem(1, 24);
  p.set_rows({{1, 3, 1}});
  fill_constant(p.gate, 0.0);
  fill_constant(p.beta, 0.0);
  double expected = 0.0;
  for (int64_t i = 0; i < 64; ++i) expected += (1.0 + 0.25 * i) * p.q.at(i);
  for (int64_t v = 0; v < 48; ++v) {
    for (int64_t i = 0; i < 64; ++i) p.state.set((48 + v) * 64 + i, (v - 9.0) * (1.0 + 0.25 * i));
  }
  ASSERT_EQ(run_kda(kPrefill, p.params(), GetParam()), "");
  for (int64_t v = 0; v < 48; ++v) {
    EXPECT_NEAR(p.out.at(v), 0.125 * expected * (v - 9.0), 1e-4) << v;
  }
}

// P18: nearly equal keys, as trained models have them.
TEST(KdaPrefillCorrelated, CpuMatchesRef) {
  for (int64_t T : {16, 64, 200}) {
    KdaProblem p = plain_problem(T, 25);
    const std::vector<double> k = unit_vector(64, 6);
    Random random(7);
    for (int64_t i = 0; i < p.k.num_elements(); ++i) {
      p.k.set(i, k[static_cast<size_t>(i % 64)] + 0.01 * random.normal() / 8.0);
    }
    p.shape.qk_normalized = false;
    fill_constant(p.gate, 0.0);
    fill_constant(p.beta, 1.0);
    EXPECT_EQ(check_kda_against_ref(kPrefill, p, "cpu"), "") << "T " << T;
  }
}

}  // namespace
}  // namespace linestate::testing
