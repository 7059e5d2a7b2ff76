// Golden files of verify and replay: within SGLang's own error of the float64 recurrence.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "linestate/ops/replay_ring.h"
#include "ops/kda/kda_verify_case.h"
#include "testing/json.h"
#include "testing/safetensors.h"

namespace linestate::testing {
namespace {

using Setting = std::tuple<const char*, const char*>;  // file, kernel

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name) {
    Result<Safetensors> file =
        read_safetensors(LINESTATE_SOURCE_DIR "/tests/golden/" + name + ".safetensors");
    EXPECT_TRUE(file.ok()) << file.status().to_string();
    if (file.ok()) file_ = std::move(*file);
  }
  const HostTensor& operator[](const char* name) const { return file_.tensors.at(name); }
  bool has(const char* name) const { return file_.has(name); }
  int64_t param(const char* key) const {
    const Result<Json> params = parse_json(*file_.meta("params"));
    return *params->get_int(key);
  }
  double error(const char* name) const {
    const Result<Json> errors = parse_json(*file_.meta("errors"));
    return *(*errors->get(name))->get_double("rel");
  }

 private:
  Safetensors file_;
};

// The widened pool of a file that keeps f32 states as bf16.
HostTensor pool_of(const GoldenFile& file, bool f32) {
  const HostTensor& stored = file["pool_before"];
  return f32 ? cast_of(stored.view(), DType::kF32) : stored.clone();
}

void judge_out(const GoldenFile& file, const char* name, const ConstTensorView& out,
               const ConstTensorView& want) {
  const double limit = std::max(1.1 * file.error(name), 1.05 * rounding_error(want, out.dtype));
  EXPECT_LE(compare(out, want).rel, limit);
}

class KdaVerifyGolden : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(All, KdaVerifyGolden,
                         ::testing::Combine(::testing::Values("kda_verify_chain_d64",
                                                              "kda_verify_tree_d64"),
                                            ::testing::Values("cpu", "ref")));

TEST_P(KdaVerifyGolden, NodesAndCommittedStates) {
  const auto& [name, kernel] = GetParam();
  const GoldenFile file(name);
  const int64_t steps = file.param("draft_tokens");
  constexpr int64_t kHead = 64;
  KdaVerifyCase test;
  test.problem.state = pool_of(file, true);
  test.problem.out = HostTensor(DType::kBF16, {3 * steps, 1, kHead});
  const auto first = [&](const char* tensor) { return file[tensor].view().select(0, 0); };
  test.problem.q = copy_of(first("q"));
  test.problem.k = copy_of(first("k"));
  test.problem.v = copy_of(first("v"));
  test.problem.gate = copy_of(first("a").split(1, kHead));
  test.problem.beta = copy_of(first("b"));
  test.problem.A_log = file["A_log"].clone();
  test.problem.dt_bias = copy_of(file["dt_bias"].view().split(0, kHead));
  for (int64_t n = 0; n < 3; ++n) {
    const auto slot = static_cast<int32_t>(file["cache_indices"].at(n));
    test.rows.push_back({slot, 64, static_cast<int32_t>(steps)});
  }
  test.problem.set_rows(test.rows);
  if (file.has("retrieve_parent_token")) {
    std::vector<int32_t> parent;
    for (int64_t t = 0; t < 3 * steps; ++t) {
      const double id = file["retrieve_parent_token"].at(t);
      parent.push_back(t % steps == 0 ? -1 : static_cast<int32_t>(id));
    }
    test.parent = i32_tensor(parent);
  }
  test.u = HostTensor(DType::kF32, {3 * steps, 1, kHead});
  test.k = HostTensor(DType::kBF16, {3 * steps, 1, kHead});
  test.k_inverse_norm = HostTensor(DType::kF32, {3 * steps, 1});
  test.alpha = HostTensor(DType::kF32, {3 * steps, 1, kHead});
  test.conv_x = HostTensor(DType::kF32, {3 * steps, kConvChannels});
  test.window = HostTensor(DType::kF32, {3, kConvChannels, 3});
  ASSERT_EQ(test.verify(kernel), "");
  HostTensor out = cast_of(test.problem.out.view(), DType::kBF16);
  EXPECT_EQ(nonzero(out.view().slice(0, steps, 2 * steps)), "");
  for (int64_t real : {0, 1}) {
    const int64_t n = 2 * real;
    judge_out(file, "o", out.view().slice(0, n * steps, (n + 1) * steps),
              first("o_ref").slice(0, n * steps, (n + 1) * steps));
  }
  const double limit = std::max(1.1 * file.error("intermediate_states"), 5e-7);
  const ConstTensorView states = file["intermediate_states_ref"].view();
  for (int32_t node = 0; node < steps; ++node) {
    KdaVerifyCase commit = test.clone();
    ASSERT_EQ(commit.commit(kernel, {node, -1, node}), "");
    for (int64_t real : {0, 1}) {
      const int32_t slot = test.rows[static_cast<size_t>(2 * real)].slot;
      const ConstTensorView want = states.select(0, real).slice(0, node, node + 1);
      EXPECT_LE(compare(commit.slot_state(slot), want).rel, limit) << node;
    }
  }
}

class KdaReplayGolden : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(All, KdaReplayGolden,
                         ::testing::Combine(::testing::Values("kda_replayssm_d128",
                                                              "kda_replayssm_bf16ring_d64"),
                                            ::testing::Values("cpu", "ref")));

// The bf16 ring of the file is an f16 ring here.
TEST_P(KdaReplayGolden, OutputsAndFlushedStates) {
  const auto& [name, kernel] = GetParam();
  const GoldenFile file(name);
  const int64_t N = file.param("B");
  const int64_t HV = file.param("HV");
  const int64_t K = file.param("K");
  const int64_t V = file.param("V");
  const int64_t R = file.param("L");
  const bool f32 = std::string(name) == "kda_replayssm_d128";
  HostTensor state = pool_of(file, f32);
  const int64_t P = state.shape()[0];
  const DType ring_dtype = f32 ? DType::kF32 : DType::kF16;
  HostTensor keys(ring_dtype, {P, HV, R - 1, K});
  HostTensor values(ring_dtype, {P, HV, R - 1, V});
  HostTensor gamma(DType::kF32, {P, HV, K});
  HostTensor cursor(DType::kI32, {P});
  HostTensor pending(DType::kI32, {N});
  HostTensor flush(DType::kU8, {N});
  // beta enters as the probability, rounded to bf16 as the file's reference does.
  HostTensor beta = file["b"].clone();
  for (int64_t i = 0; i < beta.num_elements(); ++i)
    beta.set(i, 1.0 / (1.0 + std::exp(-beta.at(i))));
  const HostTensor dt_bias = copy_of(file["dt_bias"].view().split(0, K));
  HostTensor out(DType::kBF16, {N, HV, V});
  const HostTensor& slots = file["cache_indices"];
  double error = 0.0;
  double norm = 0.0;
  for (int64_t s = 0; s < file.param("steps"); ++s) {
    HostTensor force(DType::kU8, {N});
    for (int64_t n = 0; n < N; ++n) force.set(n, file["force_flush"].at(s * N + n) != 0 ? 1 : 0);
    ReplayStepParams step{{slots, {}, {}, {}}, force, R, cursor, pending, flush};
    ASSERT_EQ(replay_step_begin(step, {}, kernel).to_string(), "ok");
    KdaReplayParams p;
    p.kda.rows.slot = slots;
    const PackedQkv qkv =
        *split_packed_qkv(file["mixed_qkv"].view().select(0, s), file.param("H"), HV, K, V);
    p.kda.q = qkv.q;
    p.kda.k = qkv.k;
    p.kda.v = qkv.v;
    p.kda.gate = file["a"].view().select(0, s);
    p.kda.beta = beta.view().select(0, s);
    p.kda.beta_form = KdaBeta::kProbability;
    p.kda.A_log = file["A_log"];
    p.kda.dt_bias = dt_bias;
    p.kda.state = state;
    p.kda.out = out;
    p.ring = {keys, values, gamma};
    p.pending = pending;
    p.flush = flush;
    ASSERT_EQ(run_sized(kda_decode_replay, kda_decode_replay_workspace_bytes, p, kernel), "");
    const ConstTensorView want = file["out_ref"].view().select(0, s).select(1, 0);
    for (int64_t n = 0; n < N; ++n) {
      const ConstTensorView row = out.view().slice(0, n, n + 1);
      if (slots.at(n) < 0) {
        EXPECT_EQ(nonzero(row), "");
        continue;
      }
      EXPECT_EQ(pending.at(n), file["write_pos"].at(s * N + n)) << s;
      const HostTensor ref = copy_of(want.slice(0, n, n + 1));
      for (int64_t i = 0; i < ref.num_elements(); ++i) {
        error += std::pow(out.at(n * HV * V + i) - ref.at(i), 2);
        norm += std::pow(ref.at(i), 2);
      }
    }
    for (int64_t i = 0; i < file["flush_step"].num_elements(); ++i) {
      if (file["flush_step"].at(i) != static_cast<double>(s)) continue;
      const auto n = static_cast<int64_t>(file["flush_row"].at(i));
      EXPECT_EQ(flush.at(n), 1);
      const auto slot = static_cast<int64_t>(slots.at(n));
      EXPECT_LE(compare(state.view().slice(0, slot, slot + 1),
                        file["flush_state_ref"].view().slice(0, i, i + 1))
                    .rel,
                1.1 * file.error("flush_state"))
          << i;
    }
  }
  EXPECT_LE(std::sqrt(error / norm), std::max(1.1 * file.error("out"), 1.05 * 1.66e-3));
}

}  // namespace
}  // namespace linestate::testing
