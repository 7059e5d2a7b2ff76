// Golden files of Lightning attention, in both variants, and of its slopes.
#include <cstdio>
#include <cstring>
#include <utility>

#include "linestate/ops/lightning.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/golden_case.h"

namespace linestate::testing {
namespace {

constexpr GoldenOp<LightningParams> kPrefill = {
    lightning_prefill, lightning_prefill_workspace_bytes, explain_lightning_prefill};
constexpr GoldenOp<LightningParams> kDecode = {lightning_decode, lightning_decode_workspace_bytes,
                                               explain_lightning_decode};

/// Prefill is never above these, whatever SGLang's own error is. f32 inputs: the rows of the CPU
/// compute in f32 ("exact").
double out_ceiling(DType dtype) { return dtype == DType::kF32 ? 1e-5 : 1.9e-3; }
double state_ceiling(DType dtype) { return dtype == DType::kF32 ? 1e-5 : 4e-4; }

LightningParams make_params(const GoldenCase& golden, const GoldenRows& rows,
                            LightningVariant variant) {
  LightningParams params;
  params.rows = rows.tensors();
  params.slopes = golden.tensor("slopes", {golden.param_int("H")});
  params.scale = lightning_scale(variant, golden.param_int("D"));
  return params;
}

}  // namespace

void run_golden_seg_la_prefill(GoldenCase& golden) {
  const int64_t heads = golden.param_int("H");
  const int64_t dim = golden.param_int("D");
  std::vector<int64_t> start;
  for (int64_t resumed : golden.ints("has_initial_states")) {
    start.push_back(resumed != 0 ? kResumedStart : 0);
  }
  const GoldenRows rows = GoldenRows::prefill(golden.ints("cache_indices"), std::move(start),
                                              golden.ints("query_start_loc"));
  const int64_t tokens = rows.num_tokens();
  const HostTensor& q = golden.tensor("q", {tokens, heads, dim});
  const HostTensor before = golden.pool("pool_before", {kAnyGoldenSize, heads, dim, dim});
  HostTensor state = before.clone();
  HostTensor out(q.dtype(), {tokens, heads, dim});
  fill_nan(out);

  LightningParams params = make_params(golden, rows, LightningVariant::kSegLa);
  params.q = q;
  params.k = golden.tensor("k", {tokens, heads, dim});
  params.v = golden.tensor("v", {tokens, heads, dim});
  params.state = state;
  params.out = out;
  golden.call(kPrefill, params);

  const std::vector<int64_t> live = rows.tokens(true);
  golden.judge_output("o", take(out, live),
                      take(golden.tensor("o_ref", {tokens, heads, dim}), live), "o",
                      out_ceiling(q.dtype()));
  golden.judge_padding("o padding", out, rows.tokens(false));
  golden.judge_state("state_after", take(state, rows.slots()),
                     golden.tensor("state_ref", {rows.num_rows(), heads, dim, dim}), "state_after",
                     state_ceiling(q.dtype()));
  golden.judge_untouched("other slots", state, before, rows.live_slots());
}

void run_golden_minimax_prefill(GoldenCase& golden) {
  const int64_t heads = golden.param_int("H");
  const int64_t dim = golden.param_int("D");
  const int64_t tokens = golden.param_int("T");
  const HostTensor& q = golden.tensor("q", {tokens, heads, dim});
  const HostTensor& ref = golden.tensor("o_ref", {tokens, heads, dim});
  // One sequence and no pool in the file: it gets slot 1, slot 0 is poison nobody may touch.
  const HostTensor history = golden.pool("kv_before", {heads, dim, dim});
  const GoldenRows rows = GoldenRows::prefill({1}, {kResumedStart}, {0, tokens});
  HostTensor before(history.dtype(), {2, heads, dim, dim});
  fill_nan(before.view().select(0, 0));
  std::memcpy(before.view().select(0, 1).data, history.data(),
              static_cast<size_t>(history.bytes()));
  HostTensor state = before.clone();
  HostTensor out(q.dtype(), {tokens, heads, dim});
  fill_nan(out);

  LightningParams params = make_params(golden, rows, LightningVariant::kMinimax);
  params.q = q;
  params.k = golden.tensor("k", {tokens, heads, dim});
  params.v = golden.tensor("v", {tokens, heads, dim});
  params.state = state;
  params.out = out;
  golden.call(kPrefill, params);

  golden.judge_output("o", out, ref, "o vs exact recurrence (o_ref)", out_ceiling(q.dtype()));
  golden.judge_state("kv_after", state.view().select(0, 1),
                     golden.tensor("kv_ref", {heads, dim, dim}), "kv_after",
                     state_ceiling(q.dtype()));
  golden.judge_untouched("other slots", state, before, rows.live_slots());
  golden.inform("SGLang's o", golden.tensor("o", {tokens, heads, dim}), ref,
                "stored in the file, against o_ref");
}

namespace {

void run_decode(GoldenCase& golden, LightningVariant variant) {
  const int64_t heads = golden.param_int("H");
  const int64_t dim = golden.param_int("D");
  const int64_t steps = golden.param_int("steps");
  const GoldenRows rows = GoldenRows::decode(golden.ints("cache_indices"));
  const int64_t batch = rows.num_rows();
  const HostTensor& q = golden.tensor("q", {steps, batch, heads, dim});
  const HostTensor& k = golden.tensor("k", {steps, batch, heads, dim});
  const HostTensor& v = golden.tensor("v", {steps, batch, heads, dim});
  const HostTensor before = golden.pool("pool_before", {kAnyGoldenSize, heads, dim, dim});
  HostTensor state = before.clone();
  HostTensor out(q.dtype(), {steps * batch, heads, dim});
  fill_nan(out);

  LightningParams params = make_params(golden, rows, variant);
  params.state = state;
  for (int64_t step = 0; step < steps; ++step) {
    params.q = q.view().select(0, step);
    params.k = k.view().select(0, step);
    params.v = v.view().select(0, step);
    params.out = out.view().slice(0, step * batch, (step + 1) * batch);
    golden.call(kDecode, params);
  }

  const std::vector<int64_t> live = rows.tokens(true, steps);
  const std::vector<int64_t> used = require(golden.params().get_ints("used_slots"));
  const ConstTensorView ref =
      view_as(golden.tensor("o_ref", {steps, batch, heads, dim}), {steps * batch, heads, dim});
  golden.judge_output("o", take(out, live), take(ref, live), "o");
  golden.judge_padding("o padding", out, rows.tokens(false, steps));
  golden.judge_state(
      "state_after", take(state, used),
      golden.tensor("state_ref", {static_cast<int64_t>(used.size()), heads, dim, dim}),
      "state_after");
  golden.judge_untouched("other slots", state, before, rows.live_slots());
}

/// "n12_L24_tp4": heads, layers and ranks of a slope tensor.
struct SlopeKey {
  int64_t heads = 0;
  int64_t layers = 0;
  int32_t ranks = 0;
};

SlopeKey parse_slope_key(const std::string& name) {
  SlopeKey key;
  int used = 0;
  long long heads = 0;
  long long layers = 0;
  if (std::sscanf(name.c_str(), "n%lld_L%lld_tp%d%n", &heads, &layers, &key.ranks, &used) != 3 ||
      static_cast<size_t>(used) != name.size() || key.ranks < 1 || heads < key.ranks) {
    throw GoldenError{Status(StatusCode::kDataLoss, "tensor \"" + name + "\": not n*_L*_tp*")};
  }
  key.heads = heads;
  key.layers = layers;
  return key;
}

}  // namespace

void run_golden_seg_la_decode(GoldenCase& golden) { run_decode(golden, LightningVariant::kSegLa); }

void run_golden_minimax_decode(GoldenCase& golden) {
  run_decode(golden, LightningVariant::kMinimax);
}

void run_golden_slopes(GoldenCase& golden) {
  const Json& layers = *require(golden.params().get("layers"));
  std::string different;
  int64_t count = 0;
  for (const auto& [name, stored] : golden.file().tensors) {
    const SlopeKey key = parse_slope_key(name);
    const std::vector<int64_t> ids = require(layers.get_ints(std::to_string(key.layers)));
    const auto num_ids = static_cast<int64_t>(ids.size());
    golden.tensor(name, {num_ids, key.ranks, key.heads / key.ranks});
    std::vector<float> ours;
    for (int64_t layer : ids) {
      for (int32_t rank = 0; rank < key.ranks; ++rank) {
        const std::vector<float> slopes =
            require(lightning_slopes(key.heads, layer, key.layers, TpShard{rank, key.ranks}));
        ours.insert(ours.end(), slopes.begin(), slopes.end());
      }
    }
    const std::string difference =
        bit_difference(f32_tensor(ours), view_as(stored, {stored.num_elements()}));
    if (!difference.empty() && different.empty()) different = name + ": " + difference;
    ++count;
  }
  golden.judge_bits(std::to_string(count) + " slope tensors", different);
  golden.set_kernel("host");
}

}  // namespace linestate::testing
