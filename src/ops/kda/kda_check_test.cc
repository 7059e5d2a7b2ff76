// Bad calls: a Status that names the argument, and nothing written.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/kda_problem.h"

namespace linestate::testing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

KdaProblem valid_problem() {
  KdaShape shape;
  shape.H = 2;
  shape.HV = 4;
  shape.K = 32;
  shape.V = 48;
  shape.io = DType::kBF16;
  KdaProblem problem = make_kda_problem(shape, 3, 7);
  problem.set_rows({{1, 4, 1}, {2, 4, 1}, {5, 4, 1}});
  return problem;
}

// Both phases refuse `params` with `text` in the message, and write nothing.
void expect_refusal(KdaProblem& problem, const KdaParams& params, const std::string& text) {
  const HostTensor out = problem.out.clone();
  const HostTensor state = problem.state.clone();
  for (KdaPhase phase : {KdaPhase::kPrefill, KdaPhase::kDecode}) {
    const std::string error = run_kda(phase, params, "auto");
    EXPECT_NE(error.find("invalid_argument: " + text), std::string::npos)
        << "expected '" << text << "', got '" << error << "'";
  }
  EXPECT_EQ(bit_difference(problem.out, out), "");
  EXPECT_EQ(bit_difference(problem.state, state), "");
}

TEST(KdaCheck, SizesAndDtypesAreNamed) {
  HostTensor f32(DType::kF32, {3, 4, 48});
  HostTensor f64(DType::kF64, {3, 2, 32});
  HostTensor wide(DType::kBF16, {3, 4, 64});
  HostTensor flat(DType::kF32, {128});
  HostTensor odd(DType::kBF16, {3, 2, 40});
  HostTensor three_heads(DType::kBF16, {3, 3, 48});
  HostTensor half(DType::kF16, {3, 4});
  HostTensor i32_state(DType::kI32, {8, 4, 48, 32});
  HostTensor swapped(DType::kF32, {8, 4, 32, 48});
  struct Fault {
    std::function<void(KdaParams&)> make;
    const char* text;
  };
  const std::vector<Fault> faults = {
      {[&](KdaParams& p) { p.q = ConstTensorView(); }, "q: expected shape [any, any, any]"},
      {[&](KdaParams& p) { p.q = f64; }, "q: expected dtype f32 or bf16 or f16, got f64"},
      {[&](KdaParams& p) { p.q = p.k = odd; }, "q: K: expected a multiple of 16"},
      {[&](KdaParams& p) { p.k = odd; }, "k: expected shape [3, 2, 32]"},
      {[&](KdaParams& p) { p.k = p.k.slice(0, 0, 2); }, "k: expected shape [3, 2, 32]"},
      {[&](KdaParams& p) { p.v = f32; }, "v: expected dtype bf16, got f32"},
      {[&](KdaParams& p) { p.v = three_heads; }, "v: expected a multiple of the 2 heads of q"},
      {[&](KdaParams& p) { p.gate = wide; }, "gate: expected shape [3, 4, 32]"},
      {[&](KdaParams& p) { p.beta = half; }, "beta: expected dtype bf16 or f32, got f16"},
      {[&](KdaParams& p) { p.A_log = flat; }, "A_log: expected shape [4]"},
      {[&](KdaParams& p) { p.A_log = ConstTensorView(); }, "A_log: expected shape [4]"},
      {[&](KdaParams& p) { p.dt_bias = flat; }, "dt_bias: expected shape [4, 32]"},
      {[&](KdaParams& p) { p.dt_bias = ConstTensorView(); }, "dt_bias: expected shape [4, 32]"},
      {[&](KdaParams& p) { p.state = i32_state; }, "state: expected dtype"},
      {[&](KdaParams& p) { p.state = swapped; }, "state: expected shape [any, 4, 48, 32]"},
      {[&](KdaParams& p) { p.out = p.out.slice(0, 0, 2); }, "out: expected shape [3, 4, 48]"},
      {[&](KdaParams& p) {
         p.q.device = {DeviceType::kCuda, 0};
       },
       "q: expected device cpu"},
      {[&](KdaParams& p) { p.v.data = nullptr; }, "v: expected memory"},
  };
  for (const Fault& fault : faults) {
    KdaProblem problem = valid_problem();
    KdaParams params = problem.params();
    fault.make(params);
    expect_refusal(problem, params, fault.text);
  }
}

TEST(KdaCheck, OptionsAreNamed) {
  struct Fault {
    KdaGate gate;
    float lower_bound;
    float scale;
    const char* text;
  };
  for (const Fault& fault :
       {Fault{KdaGate::kBounded, 0.0f, 0.0f, "lower_bound: expected a finite value < 0"},
        Fault{KdaGate::kBounded, 1.0f, 0.0f, "lower_bound: expected a finite value < 0"},
        Fault{KdaGate::kBounded, kNaN, 0.0f, "lower_bound: expected a finite value < 0"},
        Fault{KdaGate::kSoftplus, -5.0f, 0.0f, "lower_bound: expected 0 unless"},
        Fault{KdaGate::kSoftplus, kNaN, 0.0f, "lower_bound: expected 0 unless"},
        Fault{KdaGate::kActivated, -5.0f, 0.0f, "lower_bound: expected 0 unless"},
        Fault{KdaGate::kSoftplus, 0.0f, kNaN, "scale: expected a finite value"},
        Fault{static_cast<KdaGate>(9), 0.0f, 0.0f, "gate_form: expected"}}) {
    KdaProblem problem = valid_problem();
    KdaParams params = problem.params();
    params.gate_form = fault.gate;
    params.lower_bound = fault.lower_bound;
    params.scale = fault.scale;
    expect_refusal(problem, params, fault.text);
  }
  KdaProblem problem = valid_problem();
  KdaParams params = problem.params();
  params.beta_form = static_cast<KdaBeta>(4);
  expect_refusal(problem, params, "beta_form: expected");
}

TEST(KdaCheck, OverlapIsNamed) {
  KdaProblem problem = valid_problem();
  KdaParams params = problem.params();
  params.out = TensorView(problem.v.data(), DType::kBF16, {3, 4, 48});
  expect_refusal(problem, params, "out: expected memory apart from v");
  params.out = TensorView(problem.state.data(), DType::kF32, {3, 4, 48});
  expect_refusal(problem, params, "out: expected memory apart from state");
  params = problem.params();
  params.dt_bias = ConstTensorView(problem.out.data(), DType::kF32, {4, 32});
  expect_refusal(problem, params, "out: expected memory apart from dt_bias");
  params = problem.params();
  params.out.stride[0] = 0;
  expect_refusal(problem, params, "out: expected strides that keep elements apart");
  params = problem.params();
  params.state.stride[1] = params.state.stride[2];
  expect_refusal(problem, params, "state: expected strides that keep elements apart");
}

TEST(KdaCheck, RowsAreChecked) {
  KdaProblem problem = valid_problem();
  problem.set_rows({{1, 4, 1}, {2, 4, 1}, {1, 4, 1}});
  expect_refusal(problem, problem.params(), "rows.slot: expected distinct live slots");
  problem.set_rows({{1, 4, 1}, {2, -4, 1}, {3, 4, 1}});
  expect_refusal(problem, problem.params(), "rows.start: expected >= 0");
  problem.set_rows({{1, 4, 1}, {2, 4, 1, 2}, {3, 4, 1}});
  expect_refusal(problem, problem.params(), "rows.num_valid: expected 0 to 1");
  problem.set_rows({{1, 4, 1}, {2, 4, 3}});
  EXPECT_NE(run_kda(KdaPhase::kPrefill, problem.params(), "auto").find("rows.query_start_loc"),
            std::string::npos);
  EXPECT_NE(run_kda(KdaPhase::kDecode, problem.params(), "auto").find("rows.slot"),
            std::string::npos);
}

TEST(KdaCheck, WorkspaceAndKernelNames) {
  KdaProblem problem = valid_problem();
  const KdaParams params = problem.params();
  const Status status = kda_prefill(params, ExecContext{});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("workspace: expected at least"), std::string::npos);
  const Status unknown = kda_decode(params, ExecContext{}, "cpp");
  EXPECT_EQ(unknown.code(), StatusCode::kNotFound);
  EXPECT_NE(unknown.message().find("auto, cuda, cpu, ref"), std::string::npos) << unknown.message();
  EXPECT_EQ(explain_kda_prefill(params, ExecContext{}).kernel, "cpu");
  EXPECT_EQ(explain_kda_decode(params, ExecContext{}, "ref").kernel, "ref");
  EXPECT_GT(explain_kda_decode(params, ExecContext{}).workspace_bytes, 0);
  KdaParams broken = params;
  broken.scale = kNaN;
  EXPECT_NE(explain_kda_prefill(broken, ExecContext{}).problem.find("scale"), std::string::npos);
}

TEST(KdaCheck, WorkspaceDoesNotGrowWithTheSequence) {
  ExecContext context;
  context.num_threads = 2;
  KdaProblem small = valid_problem();
  KdaProblem large = make_kda_problem(small.shape, 4096, 7);
  large.set_rows({{1, 4, 4000}, {2, 4, 96}});
  EXPECT_EQ(*kda_prefill_workspace_bytes(small.params(), context),
            *kda_prefill_workspace_bytes(large.params(), context));
}

// An activated gate reads neither A_log nor dt_bias, whatever they are.
TEST(KdaCheck, ActivatedGateIgnoresGateVectors) {
  KdaProblem problem = valid_problem();
  problem.shape.gate_form = KdaGate::kActivated;
  fill_uniform(problem.gate, 3, -1.0, 0.0);
  KdaParams params = problem.params();
  params.A_log.rank = 4;
  params.dt_bias = ConstTensorView(problem.out.data(), DType::kI32, {1});
  EXPECT_EQ(run_kda(KdaPhase::kPrefill, params, "cpu"), "");
  EXPECT_EQ(run_kda(KdaPhase::kDecode, params, "ref"), "");
}

TEST(KdaCheck, PackedWidthMustMatch) {
  HostTensor packed(DType::kF32, {5, 128 + 96});
  EXPECT_TRUE(split_packed_qkv(packed, 2, 3, 32, 32).ok());
  const Result<PackedQkv> wrong = split_packed_qkv(packed, 2, 4, 32, 32);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(wrong.status().message().find("packed: expected shape [any, 256]"), std::string::npos);
  EXPECT_FALSE(split_packed_qkv(packed, 0, 4, 32, 32).ok());
  EXPECT_FALSE(split_packed_qkv(packed, int64_t{1} << 62, 4, 32, 32).ok());
  EXPECT_FALSE(split_packed_qkv(packed.view().select(0, 0), 2, 3, 32, 32).ok());
}

}  // namespace
}  // namespace linestate::testing
