// The step against the three operators that it stands for: every bit of outputs, states and
// windows. The operators are tested against the oracle where they live.
#include "linestate/ops/kda_decode_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/message.h"
#include "linestate/ops/norm.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/kda_problem.h"

namespace linestate::testing {
namespace {

struct StepShape {
  KdaShape kda;
  int64_t W = 4;
  bool bias = true;
  bool norm = true;
  DType window = DType::kF32;  // of x where that is narrow
  DType weight = DType::kBF16;
  Activation activation = Activation::kSilu;
};

struct StepProblem {
  StepShape shape;
  KdaProblem kda;  // its q, k, v are not used
  HostTensor x, weight, bias, window, norm_weight, z;
  HostTensor snap_row, snap_position, snap_slot;

  KdaDecodeStepParams params() {
    const KdaParams base = kda.params();
    KdaDecodeStepParams p;
    p.rows = base.rows;
    p.x = x;
    p.conv_weight = weight;
    if (shape.bias) p.conv_bias = bias;
    p.activation = shape.activation;
    p.window = window;
    p.gate = base.gate;
    p.beta = base.beta;
    p.gate_form = base.gate_form;
    p.beta_form = base.beta_form;
    p.A_log = base.A_log;
    p.dt_bias = base.dt_bias;
    p.lower_bound = base.lower_bound;
    p.qk_normalized = base.qk_normalized;
    p.state = base.state;
    if (shape.norm) {
      p.norm_weight = norm_weight;
      p.z = z;
    }
    p.out = base.out;
    if (snap_row.defined()) p.snapshots = {snap_row, snap_position, snap_slot};
    return p;
  }
  StepProblem clone() const {
    StepProblem copy;
    copy.shape = shape;
    copy.kda = kda.clone();
    const auto clone_if = [](const HostTensor& t) {
      return t.defined() ? t.clone() : HostTensor();
    };
    copy.x = x.clone();
    copy.weight = weight.clone();
    copy.bias = bias.clone();
    copy.window = window.clone();
    copy.norm_weight = norm_weight.clone();
    copy.z = z.clone();
    copy.snap_row = clone_if(snap_row);
    copy.snap_position = clone_if(snap_position);
    copy.snap_slot = clone_if(snap_slot);
    return copy;
  }
};

StepProblem make_step(const StepShape& shape, int64_t N, uint64_t seed) {
  StepProblem p;
  p.shape = shape;
  p.kda = make_kda_problem(shape.kda, N, seed);
  const KdaShape& k = shape.kda;
  const int64_t channels = 2 * k.H * k.K + k.HV * k.V;
  p.x = HostTensor(k.io, {N, channels});
  p.weight = HostTensor(shape.weight, {channels, shape.W});
  p.bias = HostTensor(DType::kF32, {channels});
  p.window = HostTensor(shape.window, {k.slots, channels, shape.W - 1});
  p.norm_weight = HostTensor(DType::kBF16, {k.V});
  p.z = HostTensor(k.io, {N, k.HV, k.V});
  fill_normal(p.x, seed + 11);
  fill_normal(p.weight, seed + 12, 0.6);
  fill_normal(p.bias, seed + 13, 0.3);
  fill_normal(p.window, seed + 14);
  fill_normal(p.norm_weight, seed + 15, 0.2, 1.0);
  fill_normal(p.z, seed + 16, 2.0);
  return p;
}

ExecContext context_over(std::vector<char>& memory, const Result<int64_t>& bytes,
                         DeviceStatus* status = nullptr) {
  ExecContext context;
  context.num_threads = 1;
  context.status = status;
  memory.assign(static_cast<size_t>(*bytes) + 128, static_cast<char>(0xff));
  auto at = reinterpret_cast<uintptr_t>(memory.data());
  context.workspace = {reinterpret_cast<void*>((at + 63) / 64 * 64), *bytes};
  return context;
}

std::string run_step(const KdaDecodeStepParams& params, const std::string& kernel,
                     DeviceStatus* status = nullptr) {
  ExecContext context;
  context.num_threads = 1;
  const Result<int64_t> bytes = kda_decode_step_workspace_bytes(params, context, kernel);
  if (!bytes.ok()) return bytes.status().to_string();
  std::vector<char> memory;
  context = context_over(memory, bytes, status);
  const Status ran = kda_decode_step(params, context, kernel);
  return ran.ok() ? "" : ran.to_string();
}

/// The three operators, over buffers of their own.
std::string run_operators(const KdaDecodeStepParams& p, const std::string& kernel) {
  const int64_t N = p.x.shape[0];
  const auto& s = p.state.shape;
  HostTensor conv_out(p.x.dtype, {N, p.x.shape[1]});
  HostTensor a(DType::kF32, {N, s[1], s[2]});
  CausalConv1dParams conv;
  conv.rows = p.rows;
  conv.x = p.x;
  conv.weight = p.conv_weight;
  conv.bias = p.conv_bias;
  conv.activation = p.activation;
  conv.window = p.window;
  conv.out = conv_out;
  conv.snapshots = p.snapshots;
  ExecContext context;
  context.num_threads = 1;
  if (const Status ran = causal_conv1d_update(conv, context, kernel); !ran.ok()) {
    return ran.to_string();
  }
  const int64_t H = (p.x.shape[1] - s[1] * s[2]) / (2 * s[3]);
  const Result<PackedQkv> parts = split_packed_qkv(conv_out, H, s[1], s[3], s[2]);
  KdaParams kda;
  kda.rows = p.rows;
  kda.q = parts->q;
  kda.k = parts->k;
  kda.v = parts->v;
  kda.gate = p.gate;
  kda.beta = p.beta;
  kda.gate_form = p.gate_form;
  kda.beta_form = p.beta_form;
  kda.A_log = p.A_log;
  kda.dt_bias = p.dt_bias;
  kda.lower_bound = p.lower_bound;
  kda.qk_normalized = p.qk_normalized;
  kda.state = p.state;
  kda.out = p.z.defined() ? TensorView(a) : p.out;
  kda.snapshots = p.snapshots;
  if (std::string error = run_kda(KdaPhase::kDecode, kda, kernel); !error.empty()) return error;
  if (!p.z.defined()) return "";
  const Status ran = gated_rms_norm({a, p.z, p.norm_weight, p.eps, p.out}, context, kernel);
  return ran.ok() ? "" : ran.to_string();
}

std::string difference(const StepProblem& a, const StepProblem& b) {
  const struct {
    const char* name;
    const HostTensor &left, &right;
  } pairs[] = {{"out", a.kda.out, b.kda.out},
               {"state", a.kda.state, b.kda.state},
               {"window", a.window, b.window}};
  for (const auto& [name, left, right] : pairs) {
    const std::string text = bit_difference(left, right);
    if (!text.empty()) return concat(name, ": ", text);
  }
  return "";
}

struct StepMode {
  std::string name;
  StepShape shape;
};

std::vector<StepMode> step_modes() {
  std::vector<StepMode> modes;
  StepShape base;
  base.kda.H = base.kda.HV = 3;
  base.kda.K = base.kda.V = 128;
  base.kda.io = base.kda.out = DType::kBF16;
  base.kda.gate_dtype = DType::kBF16;
  base.window = DType::kBF16;
  base.kda.slots = 12;
  modes.push_back({"bf16", base});
  StepShape shape = base;
  shape.kda.HV = 9;
  shape.kda.state = DType::kF16;
  shape.kda.gate_form = KdaGate::kBounded;
  shape.kda.lower_bound = -5.0f;
  shape.bias = false;
  modes.push_back({"grouped_f16_state", shape});
  shape = base;
  shape.kda.H = 1;
  shape.kda.HV = 2;
  shape.kda.state = DType::kBF16;
  shape.kda.out = DType::kF32;
  shape.window = DType::kF32;
  shape.norm = false;
  modes.push_back({"no_norm_f32_window", shape});
  shape = base;
  shape.kda.io = shape.kda.gate_dtype = shape.kda.out = DType::kF32;
  shape.window = DType::kF32;
  shape.weight = DType::kF32;
  shape.kda.gate_form = KdaGate::kActivated;
  shape.kda.beta_form = KdaBeta::kProbability;
  shape.activation = Activation::kNone;
  modes.push_back({"f32_activated", shape});
  shape = base;
  shape.kda.io = shape.kda.out = shape.window = DType::kF16;
  shape.kda.gate_dtype = DType::kF32;
  shape.kda.qk_normalized = true;
  modes.push_back({"f16", shape});
  return modes;
}

std::vector<StepMode> small_modes() {
  StepShape shape;
  shape.kda.HV = 4;
  shape.kda.slots = 12;
  shape.kda.K = 48;
  shape.kda.V = 32;
  shape.W = 2;
  return {{"small_f32", shape}};
}

const std::vector<KdaRow> kStepRows = {{3, 7, 1},    {-1, 4, 1},   {0, 0, 1},  {11, 1, 1},
                                       {5, 9, 1, 0}, {6, 0, 1, 0}, {8, 100, 1}};

class KdaDecodeStep : public ::testing::TestWithParam<std::string> {};

TEST_P(KdaDecodeStep, HasTheBitsOfTheOperators) {
  std::vector<StepMode> modes = step_modes();
  if (GetParam() != "cuda") {
    for (const StepMode& mode : small_modes()) modes.push_back(mode);
  }
  for (const StepMode& mode : modes) {
    StepProblem fused = make_step(mode.shape, 7, 5);
    fused.kda.set_rows(kStepRows);
    fused.snap_row = i32_tensor({0, 6, 2});
    fused.snap_position = i32_tensor({8, 102, 1});  // reached, not reached, reached
    fused.snap_slot = i32_tensor({1, 2, 4});
    StepProblem apart = fused.clone();
    ASSERT_EQ(run_step(fused.params(), GetParam()), "") << mode.name;
    ASSERT_EQ(run_operators(apart.params(), GetParam()), "") << mode.name;
    EXPECT_EQ(difference(fused, apart), "") << mode.name;
    EXPECT_EQ(nonzero(fused.kda.out.view().select(0, 1)), "") << mode.name;
    EXPECT_NE(nonzero(fused.kda.out.view().select(0, 0)), "") << mode.name;
  }
}

TEST_P(KdaDecodeStep, ManyRowsHaveTheBitsOfEach) {
  StepShape shape = step_modes()[0].shape;
  shape.kda.slots = 110;
  constexpr int64_t kRows = 101;  // 303 heads: not the shape of few
  StepProblem all = make_step(shape, kRows, 8);
  std::vector<KdaRow> rows;
  for (int64_t n = 0; n < kRows; ++n) rows.push_back({static_cast<int32_t>(109 - n), n, 1});
  all.kda.set_rows(rows);
  StepProblem one = all.clone();
  ASSERT_EQ(run_step(all.params(), GetParam()), "");
  for (int64_t n : {0, 1, 50, 100}) {
    KdaDecodeStepParams p = one.params();
    for (ConstTensorView* view :
         {&p.x, &p.gate, &p.beta, &p.z, &p.rows.slot, &p.rows.start, &p.rows.num_valid}) {
      if (view->defined()) *view = view->slice(0, n, n + 1);
    }
    p.out = p.out.slice(0, n, n + 1);
    ASSERT_EQ(run_step(p, GetParam()), "");
    EXPECT_EQ(bit_difference(one.kda.out.view().select(0, n), all.kda.out.view().select(0, n)), "");
    EXPECT_EQ(bit_difference(one.kda.state.view().select(0, 109 - n),
                             all.kda.state.view().select(0, 109 - n)),
              "");
    EXPECT_EQ(
        bit_difference(one.window.view().select(0, 109 - n), all.window.view().select(0, 109 - n)),
        "");
  }
}

TEST_P(KdaDecodeStep, FreshRowsReadNothingOld) {
  StepProblem dirty = make_step(step_modes()[0].shape, 2, 3);
  dirty.kda.set_rows({{4, 0, 1}, {-1, 0, 1}});
  StepProblem clean = dirty.clone();
  fill_nan(dirty.kda.state.view().select(0, 4));
  fill_nan(dirty.window.view().select(0, 4));
  fill_constant(clean.kda.state.view().select(0, 4), 0.0);
  fill_constant(clean.window.view().select(0, 4), 0.0);
  fill_nan(dirty.z.view().select(0, 1));  // of the padding row
  ASSERT_EQ(run_step(dirty.params(), GetParam()), "");
  ASSERT_EQ(run_step(clean.params(), GetParam()), "");
  EXPECT_EQ(difference(dirty, clean), "");
}

INSTANTIATE_TEST_SUITE_P(Rows, KdaDecodeStep, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return info.param; });

TEST(KdaDecodeStepCheck, NamesWhatIsWrong) {
  StepProblem problem = make_step(step_modes()[0].shape, 2, 3);
  problem.kda.set_rows({{4, 0, 1}, {-1, 0, 1}});
  const auto error = [&](auto change) {
    KdaDecodeStepParams p = problem.params();
    change(p);
    return run_step(p, "ref");
  };
  const auto names = [](const std::string& text, const char* what) {
    return text.find(what) != std::string::npos;
  };
  EXPECT_TRUE(names(error([](auto& p) { p.x = p.x.slice(1, 0, 1000); }), "x: expected 2 H K"));
  EXPECT_TRUE(names(error([](auto& p) { p.z = {}; }), "z: expected exactly"));
  EXPECT_TRUE(names(error([](auto& p) { p.window = p.window.slice(2, 0, 2); }), "window"));
  EXPECT_TRUE(names(error([](auto& p) { p.eps = 0.0f; }), "eps"));
  EXPECT_TRUE(
      names(error([](auto& p) { p.conv_weight = p.conv_weight.slice(1, 0, 1); }), "conv_weight"));
  EXPECT_TRUE(names(error([](auto& p) { p.lower_bound = -1.0f; }), "lower_bound"));
  EXPECT_TRUE(names(error([](auto& p) { p.gate = p.gate.slice(1, 0, 2); }), "gate"));
}

}  // namespace
}  // namespace linestate::testing
