// Golden files of KDA prefill and decode.
#include <utility>

#include "linestate/ops/kda.h"
#include "testing/fill.h"
#include "testing/golden_case.h"

namespace linestate::testing {
namespace {

constexpr GoldenOp<KdaParams> kPrefill = {kda_prefill, kda_prefill_workspace_bytes,
                                          explain_kda_prefill};
constexpr GoldenOp<KdaParams> kDecode = {kda_decode, kda_decode_workspace_bytes,
                                         explain_kda_decode};

/// Never above these, whatever SGLang's own error is. Bounded gates allow a faster template with
/// 16-bit operands; the general one keeps more.
struct Ceilings {
  double out;
  double state;
};
constexpr Ceilings kBoundedCeilings = {3.3e-3, 1.8e-3};
constexpr Ceilings kGeneralCeilings = {2.1e-3, 1.2e-3};

/// "sequences_with_nonzero_initial_state" are resumed, all others fresh.
GoldenRows prefill_rows(const GoldenCase& golden) {
  std::vector<int64_t> slots = golden.ints("cache_indices");
  std::vector<int64_t> start(slots.size(), 0);
  for (int64_t row : require(golden.params().get_ints("sequences_with_nonzero_initial_state"))) {
    if (row < 0 || row >= static_cast<int64_t>(start.size())) {
      throw GoldenError{Status(StatusCode::kDataLoss, "a resumed sequence that does not exist")};
    }
    start[static_cast<size_t>(row)] = kResumedStart;
  }
  return GoldenRows::prefill(std::move(slots), std::move(start), golden.ints("cu_seqlens"));
}

/// NaN into the slots of fresh rows: their old bytes must not matter.
void poison_fresh(HostTensor& state, const GoldenRows& rows) {
  for (int64_t slot : rows.fresh_slots()) fill_nan(state.view().slice(0, slot, slot + 1));
}

/// How far SGLang's own tensors are from the recurrence, where the file is about a trap.
void inform_traps(GoldenCase& golden, const ConstTensorView& ref) {
  if (!golden.has("o_as_shipped_fused")) return;
  for (const char* name : {"o", "o_as_shipped_fused", "o_as_shipped_unfused"}) {
    if (!golden.has(name)) continue;
    const HostTensor& stored = golden.tensor(name, {1, ref.shape[0], ref.shape[1], ref.shape[2]});
    golden.inform(std::string("SGLang's ") + name, stored.view().select(0, 0), ref,
                  "stored in the file, against o_ref");
  }
}

}  // namespace

void run_golden_kda_prefill(GoldenCase& golden) {
  const int64_t heads = golden.param_int("H");
  const int64_t k_dim = golden.param_int("K");
  const int64_t v_dim = golden.param_int("V");
  const GoldenRows rows = prefill_rows(golden);
  const int64_t tokens = rows.num_tokens();
  const HostTensor& v = golden.tensor("v", {1, tokens, heads, v_dim});
  const HostTensor before = golden.pool("pool_before", {kAnyGoldenSize, heads, v_dim, k_dim});
  HostTensor state = before.clone();
  poison_fresh(state, rows);
  HostTensor out(v.dtype(), {tokens, heads, v_dim});
  fill_nan(out);

  KdaParams params;
  params.rows = rows.tensors();
  params.q = golden.tensor("q", {1, tokens, heads, k_dim}).view().select(0, 0);
  params.k = golden.tensor("k", {1, tokens, heads, k_dim}).view().select(0, 0);
  params.v = v.view().select(0, 0);
  params.gate = golden.tensor("g", {1, tokens, heads, k_dim}).view().select(0, 0);
  params.beta = golden.tensor("beta", {1, tokens, heads}).view().select(0, 0);
  params.beta_form = KdaBeta::kProbability;
  params.A_log = golden.tensor("A_log", {heads});
  params.dt_bias = view_as(golden.tensor("dt_bias", {heads * k_dim}), {heads, k_dim});
  const bool bounded = !require(golden.params().get("lower_bound"))->is_null();
  if (bounded) {
    params.gate_form = KdaGate::kBounded;
    params.lower_bound = static_cast<float>(require(golden.params().get_double("lower_bound")));
  }
  params.scale = static_cast<float>(require(golden.params().get_double("scale")));
  params.state = state;
  params.out = out;
  golden.call(kPrefill, params);

  const Ceilings& ceilings = bounded ? kBoundedCeilings : kGeneralCeilings;
  const ConstTensorView ref = golden.tensor("o_ref", {1, tokens, heads, v_dim}).view().select(0, 0);
  const std::vector<int64_t> live = rows.tokens(true);
  golden.judge_output("o", take(out, live), take(ref, live), "o", ceilings.out);
  golden.judge_padding("o padding", out, rows.tokens(false));
  if (golden.has("state_ref")) {
    const HostTensor& state_ref =
        golden.tensor("state_ref", {rows.num_rows(), heads, v_dim, k_dim});
    golden.judge_state("state_after", take(state, rows.slots()), state_ref, "state_after",
                       ceilings.state);
  }
  golden.judge_untouched("other slots", state, before, rows.live_slots());
  inform_traps(golden, ref);
}

namespace {

/// The inputs of a decode file and one pool that its steps run on.
class Decode {
 public:
  explicit Decode(GoldenCase& golden)
      : golden_(golden),
        rows_(GoldenRows::decode(golden.ints("cache_indices"))),
        heads_(golden.param_int("H")),
        value_heads_(golden.param_int("HV")),
        k_dim_(golden.param_int("K")),
        v_dim_(golden.param_int("V")),
        steps_(golden.param_int("steps")),
        before_(golden.pool("pool_before", {kAnyGoldenSize, value_heads_, v_dim_, k_dim_})) {}

  const GoldenRows& rows() const { return rows_; }
  const HostTensor& before() const { return before_; }
  int64_t steps() const { return steps_; }
  int64_t flat_tokens() const { return steps_ * rows_.num_rows(); }
  HostTensor make_out(DType dtype) const {
    return HostTensor(dtype, {flat_tokens(), value_heads_, v_dim_});
  }
  ConstTensorView flat(const char* name) const {
    const HostTensor& stored =
        golden_.tensor(name, {steps_, rows_.num_rows(), 1, value_heads_, v_dim_});
    return view_as(stored, {flat_tokens(), value_heads_, v_dim_});
  }
  const HostTensor& used_states(const char* name) const {
    const auto used = static_cast<int64_t>(used_slots().size());
    return golden_.tensor(name, {used, value_heads_, v_dim_, k_dim_});
  }
  std::vector<int64_t> used_slots() const {
    return require(golden_.params().get_ints("used_slots"));
  }

  /// All steps on `state`; `kernel` empty = the options'.
  void run(HostTensor& state, HostTensor& out, std::string_view kernel) const {
    const int64_t batch = rows_.num_rows();
    const int64_t channels = 2 * heads_ * k_dim_ + value_heads_ * v_dim_;
    const HostTensor& qkv = golden_.tensor("mixed_qkv", {steps_, batch, channels});
    const HostTensor& a = golden_.tensor("a", {steps_, batch, value_heads_ * k_dim_});
    const HostTensor& b = golden_.tensor("b", {steps_, batch, value_heads_});
    KdaParams params;
    params.rows = rows_.tensors();
    params.A_log = golden_.tensor("A_log", {value_heads_});
    params.dt_bias =
        view_as(golden_.tensor("dt_bias", {value_heads_ * k_dim_}), {value_heads_, k_dim_});
    params.scale = static_cast<float>(require(golden_.params().get_double("scale")));
    params.state = state;
    for (int64_t step = 0; step < steps_; ++step) {
      const PackedQkv packed = require(
          split_packed_qkv(qkv.view().select(0, step), heads_, value_heads_, k_dim_, v_dim_));
      params.q = packed.q;
      params.k = packed.k;
      params.v = packed.v;
      params.gate = a.view().select(0, step).split(1, k_dim_);
      params.beta = b.view().select(0, step);
      params.out = out.view().slice(0, step * batch, (step + 1) * batch);
      golden_.call(kDecode, params, kernel);
    }
  }

 private:
  GoldenCase& golden_;
  GoldenRows rows_;
  int64_t heads_;
  int64_t value_heads_;
  int64_t k_dim_;
  int64_t v_dim_;
  int64_t steps_;
  HostTensor before_;
};

/// A 16-bit pool rounds the state at every step. The file has the state of a float64 recurrence
/// that rounds at the same points, but not its outputs: those come from the `ref` row with f32
/// outputs, run step by step on a pool of the same dtype.
void judge_rounded(GoldenCase& golden, const Decode& decode, const ConstTensorView& out,
                   const ConstTensorView& state) {
  HostTensor ref_state = decode.before().clone();
  HostTensor ref_out = decode.make_out(DType::kF32);
  decode.run(ref_state, ref_out, "ref");
  const std::vector<int64_t> live = decode.rows().tokens(true, decode.steps());
  golden.judge_output("out, state rounded each step", take(out, live), take(ref_out, live),
                      "out_packed vs ref with state rounded each step", kNoCeiling,
                      "reference: the ref row, f32 outputs, on a pool of the same dtype");
  golden.judge_state("state, rounded each step", take(state, decode.used_slots()),
                     decode.used_states("state_ref_rounded"),
                     "state packed vs ref with state rounded each step");
}

}  // namespace

void run_golden_kda_decode(GoldenCase& golden) {
  const Decode decode(golden);
  HostTensor state = decode.before().clone();
  HostTensor out = decode.make_out(DType::kBF16);
  fill_nan(out);
  decode.run(state, out, {});

  const std::vector<int64_t> live = decode.rows().tokens(true, decode.steps());
  golden.judge_output("out", take(out, live), take(decode.flat("out_ref"), live), "out_packed");
  golden.judge_padding("out padding", out, decode.rows().tokens(false, decode.steps()));
  golden.judge_state("state_after", take(state, decode.used_slots()),
                     decode.used_states("state_ref"), "state packed");
  if (golden.has("state_ref_rounded")) judge_rounded(golden, decode, out, state);
  golden.judge_untouched("other slots", state, decode.before(), decode.rows().live_slots());
}

}  // namespace linestate::testing
