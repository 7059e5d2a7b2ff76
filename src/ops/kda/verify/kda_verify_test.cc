// Verify against decodes of every root path, and under the row contract.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/message.h"
#include "ops/kda/kda_verify_case.h"

namespace linestate::testing {
namespace {

struct Mode {
  std::string name;
  KdaShape shape;
};

std::vector<Mode> modes() {
  std::vector<Mode> out;
  for (DType state : {DType::kF32, DType::kBF16, DType::kF16}) {
    KdaShape shape;
    shape.H = 2;
    shape.HV = 4;
    shape.K = 32;
    shape.V = 48;
    shape.io = state == DType::kF32 ? DType::kBF16 : DType::kF32;
    shape.gate_dtype = DType::kF32;
    shape.state = state;
    out.push_back({concat("gva_state_", dtype_name(state)), shape});
  }
  for (KdaGate gate : {KdaGate::kSoftplus, KdaGate::kBounded, KdaGate::kActivated}) {
    KdaShape shape;
    shape.K = 64;
    shape.V = 32;
    shape.gate_form = gate;
    shape.lower_bound = gate == KdaGate::kBounded ? -5.0f : 0.0f;
    shape.qk_normalized = gate == KdaGate::kActivated;
    shape.beta_form = shape.qk_normalized ? KdaBeta::kProbability : KdaBeta::kLogits;
    out.push_back({concat("gate", static_cast<int>(gate)), shape});
  }
  KdaShape f16;
  f16.H = 1;
  f16.HV = 3;
  f16.K = 16;
  f16.V = 16;
  f16.io = f16.gate_dtype = f16.out = DType::kF16;
  out.push_back({"f16", f16});
  return out;
}

class KdaVerifyModes : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, KdaVerifyModes, ::testing::ValuesIn(modes()),
                         [](const auto& info) { return info.param.name; });

// Every node of every row against decodes of its path.
void expect_paths(KdaVerifyCase& test, const std::string& kernel) {
  const HostTensor before = test.problem.state.clone();
  ASSERT_EQ(test.verify(kernel), "");
  EXPECT_EQ(bit_difference(test.problem.state, before), "");
  for (size_t n = 0; n < test.rows.size(); ++n) {
    const KdaRow& row = test.rows[n];
    const bool live = row.slot >= 0 && row.slot < test.problem.shape.slots;
    const int64_t valid = !live ? 0 : row.num_valid < 0 ? row.tokens : row.num_valid;
    for (int64_t i = 0; i < row.tokens; ++i) {
      const int64_t t = test.begin_of(n) + i;
      const HostTensor out = copy_of(test.problem.out.view().slice(0, t, t + 1));
      const std::vector<int64_t> path = path_of(test, n, i);
      if (i >= valid || path.empty()) {
        EXPECT_EQ(nonzero(out), "") << n << " " << i;
        continue;
      }
      std::string error;
      const KdaProblem steps = decode_path(test, n, path, kernel, error);
      ASSERT_EQ(error, "");
      const HostTensor want = copy_of(steps.out.view().slice(0, t, t + 1));
      if (kernel == "ref") {
        EXPECT_EQ(bit_difference(out, cast_of(want, out.dtype())), "") << n << " " << i;
      }
      const bool wide = out.dtype() == DType::kF32;
      EXPECT_LE(compare(out, want).rel, wide ? 1e-6 : 1.05 * rounding_error(want, out.dtype()))
          << n << " " << i;
    }
  }
}

TEST_P(KdaVerifyModes, EveryPathOfATreeIsDecodes) {
  const std::vector<KdaRow> rows = {{3, 70, 16}, {-1, 5, 4}, {6, 0, 9, 7}, {0, 1, 1},
                                    {2, 9, 0},   {99, 3, 2}, {5, 4, 6, 0}};
  for (const char* kernel : {"ref", "cpu"}) {
    KdaVerifyCase test = make_verify_case(GetParam().shape, rows, 101, 43);
    fill_nan(test.problem.state.view().select(0, 6));  // fresh: not looked at
    test.parent = i32_tensor(random_parents(rows, 7, true));
    HostTensor padded(DType::kI32, {43});  // behind the rows: never read
    for (int64_t t = 0; t < 43; ++t) {
      padded.set(t, t < test.parent.num_elements() ? test.parent.at(t) : 1000);
    }
    test.parent = std::move(padded);
    expect_paths(test, kernel);
    EXPECT_EQ(nonzero(test.problem.out.view().slice(0, 38, 43)), "");
  }
}

TEST_P(KdaVerifyModes, ChainsAreDecodes) {
  for (const char* kernel : {"ref", "cpu"}) {
    KdaVerifyCase test = make_verify_case(GetParam().shape, {{1, 3, 5}, {4, 0, 4}}, 103);
    expect_paths(test, kernel);
    // The same with the parents written down.
    KdaVerifyCase written = test.clone();
    written.parent = i64_tensor({-1, 0, 1, 2, 3, -1, 0, 1, 2});
    ASSERT_EQ(written.verify(kernel), "");
    EXPECT_EQ(bit_difference(written.problem.out, test.problem.out), "");
    EXPECT_EQ(bit_difference(written.u, test.u), "");
  }
}

class KdaVerifyKernel : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, KdaVerifyKernel, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

KdaShape small_shape() {
  KdaShape shape;
  shape.H = 1;
  shape.HV = 2;
  shape.K = 32;
  shape.V = 16;
  return shape;
}

TEST_P(KdaVerifyKernel, StrongGatesAndLargeStates) {
  KdaShape shape = small_shape();
  shape.gate_form = KdaGate::kActivated;
  KdaVerifyCase test = make_verify_case(shape, {{2, 8, 16}}, 107);
  fill_uniform(test.problem.gate, 108, -50.0, 0.0);
  fill_normal(test.problem.state, 109, 100.0);
  test.parent = i32_tensor(random_parents(test.rows, 9, false));
  expect_paths(test, GetParam());
}

TEST_P(KdaVerifyKernel, TheLongestRow) {
  KdaVerifyCase test = make_verify_case(small_shape(), {{2, 8, 256}}, 110);
  KdaProblem chain = test.problem.clone();
  ASSERT_EQ(test.verify(GetParam()), "");
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, chain.params(), GetParam()), "");
  EXPECT_LE(compare(test.problem.out, chain.out).rel, 1e-6);
}

// P07: the record belongs to the batch row; its size has nothing to do with the slots.
TEST_P(KdaVerifyKernel, RecordIsAddressedByTokenNotBySlot) {
  struct Setting {
    int64_t slots;
    std::vector<KdaRow> rows;
  };
  for (const Setting& setting : {Setting{64, {{63, 4, 4}, {40, 9, 4}}},
                                 Setting{2, {{1, 4, 4}, {0, 4, 4}, {-1, 4, 4}, {-1, 4, 4}}},
                                 Setting{8, {{-1, 4, 4}, {7, 4, 4}, {-1, 0, 4}, {2, 4, 4}}}}) {
    KdaShape shape = small_shape();
    shape.slots = setting.slots;
    KdaVerifyCase test = make_verify_case(shape, setting.rows, 111);
    // Canaries before and behind the record: it lies inside a larger tensor.
    const int64_t T = test.problem.tokens();
    HostTensor big(DType::kF32, {T + 2, shape.HV, shape.V});
    fill_nan(big);
    KdaVerifyParams params = test.verify_params();
    params.record.u = big.view().slice(0, 1, T + 1);
    ASSERT_EQ(run_sized(kda_verify, kda_verify_workspace_bytes, params, GetParam()), "");
    HostTensor untouched(DType::kF32, {1, shape.HV, shape.V});
    fill_nan(untouched);
    EXPECT_EQ(bit_difference(big.view().slice(0, 0, 1), untouched), "");
    EXPECT_EQ(bit_difference(big.view().slice(0, T + 1, T + 2), untouched), "");
    for (size_t n = 0; n < setting.rows.size(); ++n) {
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t t = test.begin_of(n) + i;
        const ConstTensorView entry = big.view().slice(0, t + 1, t + 2);
        if (setting.rows[n].slot < 0) {
          EXPECT_EQ(bit_difference(entry, untouched), "");
        } else {
          EXPECT_TRUE(compare(entry, entry).finite);
        }
      }
    }
  }
}

TEST_P(KdaVerifyKernel, RecordHoldsWhatCommitNeeds) {
  KdaShape shape = small_shape();
  shape.io = DType::kBF16;
  const std::vector<KdaRow> rows = {{4, 2, 3}, {1, 2, 4, 2}};
  KdaVerifyCase test = make_verify_case(shape, rows, 113);
  test.parent = i32_tensor({-1, -1, 0, -1, 0, 0, 0});
  ASSERT_EQ(test.verify(GetParam()), "");
  const std::vector<bool> written = {true, false, true, true, true, false, false};
  for (int64_t t = 0; t < 7; ++t) {
    const bool want = written[static_cast<size_t>(t)];
    for (const HostTensor* part : {&test.u, &test.k, &test.k_inverse_norm, &test.alpha}) {
      const ConstTensorView entry = part->view().slice(0, t, t + 1);
      EXPECT_EQ(compare(entry, entry).finite, want) << t;
    }
    if (!want) continue;
    EXPECT_EQ(
        bit_difference(test.k.view().slice(0, t, t + 1), test.problem.k.view().slice(0, t, t + 1)),
        "");
    double sum = 0.0;
    for (int64_t i = 0; i < shape.K; ++i) {
      sum += test.k.at(t * shape.K + i) * test.k.at(t * shape.K + i);
    }
    EXPECT_NEAR(test.k_inverse_norm.at(t) * std::sqrt(sum + 1e-6), 1.0, 1e-6);
  }
}

TEST_P(KdaVerifyKernel, BatchMatesAndThreadsDoNotChangeBits) {
  const std::vector<KdaRow> rows = {{3, 7, 7}, {0, 0, 9}, {-1, 0, 3}, {6, 2, 1}};
  KdaVerifyCase batch = make_verify_case(small_shape(), rows, 117);
  batch.parent = i32_tensor(random_parents(rows, 3, true));
  const KdaVerifyCase input = batch.clone();
  ASSERT_EQ(batch.verify(GetParam()), "");
  for (int threads : {2, 3}) {
    KdaVerifyCase again = input.clone();
    ASSERT_EQ(again.verify(GetParam(), threads), "");
    EXPECT_EQ(bit_difference(again.problem.out, batch.problem.out), "");
    EXPECT_EQ(bit_difference(again.u, batch.u), "");
    EXPECT_EQ(bit_difference(again.alpha, batch.alpha), "");
  }
  KdaVerifyCase alone = input.clone();
  KdaVerifyParams params = alone.verify_params();
  params.kda = slice_tokens(alone.problem, 7, 16);
  const HostTensor slot = i32_tensor({0});
  const HostTensor start = i32_tensor({0});
  const HostTensor offsets = i32_tensor({0, 9});
  params.kda.rows = {slot, offsets, start, {}};
  params.parent = params.parent.slice(0, 7, 16);
  for (TensorView* part :
       {&params.record.u, &params.record.k, &params.record.k_inverse_norm, &params.record.alpha}) {
    *part = part->slice(0, 7, 16);
  }
  ASSERT_EQ(run_sized(kda_verify, kda_verify_workspace_bytes, params, GetParam()), "");
  EXPECT_EQ(bit_difference(alone.problem.out.view().slice(0, 7, 16),
                           batch.problem.out.view().slice(0, 7, 16)),
            "");
  EXPECT_EQ(bit_difference(alone.u.view().slice(0, 7, 16), batch.u.view().slice(0, 7, 16)), "");
}

std::string refusal(KdaVerifyCase& test, const std::vector<int32_t>& parent) {
  test.parent = i32_tensor(parent);
  return test.verify("auto");
}

TEST(KdaVerifyCheck, Refusals) {
  KdaVerifyCase test = make_verify_case(small_shape(), {{3, 7, 2}, {-1, 0, 1}}, 119);
  EXPECT_EQ(refusal(test, {-1, 0, 5}), "");
  EXPECT_NE(refusal(test, {-1, 1, -1}).find("parent: expected -1 to 0 for node 1 of row 0, got 1"),
            std::string::npos);
  EXPECT_NE(refusal(test, {0, 0, -1}).find("parent: expected -1"), std::string::npos);
  EXPECT_NE(refusal(test, {-1, -2, -1}).find("parent: expected -1"), std::string::npos);
  EXPECT_NE(refusal(test, {-1, 0}).find("parent: expected shape [3]"), std::string::npos);
  test.parent = HostTensor();

  KdaVerifyCase wide = make_verify_case(small_shape(), {{3, 7, 257}}, 121);
  EXPECT_NE(wide.verify("auto").find("at most 256 draft tokens"), std::string::npos);

  ExecContext context;
  KdaVerifyParams params = test.verify_params();
  params.record.u = test.problem.v;  // right shape, an input's memory
  EXPECT_NE(kda_verify(params, context).message().find("record.u: expected memory apart from v"),
            std::string::npos);
  params = test.verify_params();
  params.record.alpha.dtype = DType::kF64;
  EXPECT_NE(kda_verify(params, context).message().find("record.alpha: expected dtype f32"),
            std::string::npos);
  params = test.verify_params();
  const HostTensor one = i32_tensor({0});
  params.kda.snapshots = {one, one, one};
  EXPECT_NE(kda_verify(params, context).message().find("snapshots: expected none"),
            std::string::npos);
}

}  // namespace
}  // namespace linestate::testing
