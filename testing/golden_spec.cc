// Golden files of speculative decoding: verify over drafts, commit of every node, and the scatters
// that engines do with per-draft states.
#include <array>
#include <cstring>
#include <utility>

#include "linestate/ops/kda_verify.h"
#include "linestate/ops/lightning_verify.h"
#include "linestate/ops/state_ops.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/golden_case.h"

namespace linestate::testing {
namespace {

template <typename Params>
Result<int64_t> no_workspace(const Params&, const ExecContext&, std::string_view) {
  return int64_t{0};
}

constexpr GoldenOp<TreeFromLinksParams> kTreeFromLinks = {
    tree_from_links, no_workspace<TreeFromLinksParams>, explain_tree_from_links};
constexpr GoldenOp<CausalConv1dVerifyParams> kConvVerify = {
    causal_conv1d_verify, causal_conv1d_verify_workspace_bytes, explain_causal_conv1d_verify};
constexpr GoldenOp<KdaVerifyParams> kKdaVerify = {kda_verify, kda_verify_workspace_bytes,
                                                  explain_kda_verify};
constexpr GoldenOp<KdaCommitParams> kKdaCommit = {kda_commit, kda_commit_workspace_bytes,
                                                  explain_kda_commit};
constexpr GoldenOp<LightningVerifyParams> kLightningVerify = {
    lightning_verify, lightning_verify_workspace_bytes, explain_lightning_verify};
constexpr GoldenOp<LightningCommitParams> kLightningCommit = {
    lightning_commit, lightning_commit_workspace_bytes, explain_lightning_commit};
constexpr GoldenOp<StateCopyParams> kStateCopy = {state_copy, no_workspace<StateCopyParams>,
                                                  explain_state_copy};

/// Rows of `drafts` tokens each, every row resumed.
GoldenRows draft_rows(const GoldenCase& golden, int64_t drafts) {
  std::vector<int64_t> slots = golden.ints("cache_indices");
  std::vector<int64_t> start(slots.size(), kResumedStart);
  std::vector<int64_t> cu{0};
  for (size_t n = 0; n < slots.size(); ++n) cu.push_back(cu.back() + drafts);
  return GoldenRows::prefill(std::move(slots), std::move(start), std::move(cu));
}

/// Row numbers of the rows that are not padding.
std::vector<int64_t> live_rows(const GoldenRows& rows) {
  std::vector<int64_t> live;
  for (int64_t n = 0; n < rows.num_rows(); ++n) {
    if (rows.slots()[static_cast<size_t>(n)] >= 0) live.push_back(n);
  }
  return live;
}

/// The same node for every row.
HostTensor every_row(const GoldenRows& rows, int64_t node) {
  return i64_tensor(std::vector<int64_t>(static_cast<size_t>(rows.num_rows()), node));
}

/// Copies one part of a [rows, drafts, ...] tensor: draft `node` of every row.
void put_draft(HostTensor& all, int64_t node, const HostTensor& of_rows) {
  const int64_t drafts = all.shape()[1];
  const int64_t rows = all.shape()[0];
  const int64_t bytes = of_rows.bytes() / rows;
  for (int64_t n = 0; n < rows; ++n) {
    std::memcpy(static_cast<char*>(all.data()) + (n * drafts + node) * bytes,
                static_cast<const char*>(of_rows.data()) + n * bytes, static_cast<size_t>(bytes));
  }
}

/// Commits every node in turn, for all rows at once, each time on a pool as it was. The rows' slots
/// after each, [live rows, drafts, ...]. `commit(accepted, pool)` makes the call.
template <typename Commit>
HostTensor commit_every_node(GoldenCase& golden, const GoldenRows& rows, int64_t drafts,
                             const HostTensor& before, const Commit& commit) {
  std::vector<int64_t> shape{static_cast<int64_t>(rows.live_slots().size()), drafts};
  shape.insert(shape.end(), before.shape().begin() + 1, before.shape().end());
  HostTensor all(before.dtype(), shape);
  for (int64_t node = 0; node < drafts; ++node) {
    HostTensor pool = before.clone();
    const HostTensor accepted = every_row(rows, node);
    commit(accepted, pool);
    put_draft(all, node, take(pool, rows.live_slots()));
    if (node + 1 == drafts) golden.judge_untouched("other slots", pool, before, rows.live_slots());
  }
  return all;
}

/// Parents from the file's links, and the judgement that they are the file's own parents.
HostTensor parents_from_links(GoldenCase& golden, const GoldenRows& rows, int64_t drafts) {
  HostTensor parent(DType::kI32, {rows.num_rows(), drafts});
  TreeFromLinksParams params;
  params.first_child = golden.tensor("retrieve_next_token", {rows.num_rows(), drafts});
  params.next_sibling = golden.tensor("retrieve_next_sibling", {rows.num_rows(), drafts});
  params.parent = parent;
  golden.call(kTreeFromLinks, params);
  HostTensor stored = golden.tensor("retrieve_parent_token", {rows.num_rows(), drafts}).clone();
  for (int64_t n = 0; n < rows.num_rows(); ++n) stored.set(n * drafts, -1);  // the file has 0
  golden.judge_exact("parents", take(parent, live_rows(rows)), take(stored, live_rows(rows)));
  return parent;
}

/// Windows move together with a state: here one of zeros.
struct ZeroAttention {
  HostTensor state, u, k, inverse_norm, alpha;
  ZeroAttention(int64_t slots, int64_t tokens)
      : state(DType::kF32, {slots, 1, 16, 16}),
        u(DType::kF32, {tokens, 1, 16}),
        k(DType::kF32, {tokens, 1, 16}),
        inverse_norm(DType::kF32, {tokens, 1}),
        alpha(DType::kF32, {tokens, 1, 16}) {}
};

/// The inputs of a KDA verify file; the call's record and output.
struct KdaDrafts {
  int64_t drafts;
  GoldenRows rows;
  int64_t tokens;
  HostTensor before, state, parent;
  HostTensor out, u, k, inverse_norm, alpha;
  KdaVerifyParams params;

  explicit KdaDrafts(GoldenCase& golden)
      : drafts(golden.param_int("draft_tokens")),
        rows(draft_rows(golden, drafts)),
        tokens(rows.num_tokens()) {
    const int64_t heads = golden.param_int("H");
    const int64_t value_heads = golden.param_int("HV");
    const int64_t k_dim = golden.param_int("K");
    const int64_t v_dim = golden.param_int("V");
    before = golden.pool("pool_before", {kAnyGoldenSize, value_heads, v_dim, k_dim});
    state = before.clone();
    const HostTensor& v = golden.tensor("v", {1, tokens, value_heads, v_dim});
    out = HostTensor(v.dtype(), {tokens, value_heads, v_dim});
    fill_nan(out);
    u = HostTensor(DType::kF32, {tokens, value_heads, v_dim});
    k = HostTensor(v.dtype(), {tokens, heads, k_dim});
    inverse_norm = HostTensor(DType::kF32, {tokens, heads});
    alpha = HostTensor(DType::kF32, {tokens, value_heads, k_dim});
    KdaParams& kda = params.kda;
    kda.rows = rows.tensors();
    kda.q = golden.tensor("q", {1, tokens, heads, k_dim}).view().select(0, 0);
    kda.k = golden.tensor("k", {1, tokens, heads, k_dim}).view().select(0, 0);
    kda.v = v.view().select(0, 0);
    kda.gate =
        view_as(golden.tensor("a", {1, tokens, value_heads * k_dim}), {tokens, value_heads, k_dim});
    kda.beta = golden.tensor("b", {1, tokens, value_heads}).view().select(0, 0);
    kda.A_log = golden.tensor("A_log", {value_heads});
    kda.dt_bias = view_as(golden.tensor("dt_bias", {value_heads * k_dim}), {value_heads, k_dim});
    kda.scale = static_cast<float>(require(golden.params().get_double("scale")));
    kda.state = state;
    kda.out = out;
    params.record = {u, k, inverse_norm, alpha};
    if (!golden.has("retrieve_parent_token")) return;
    parent = golden.tensor("retrieve_parent_token", {rows.num_rows(), drafts}).clone();
    for (int64_t n = 0; n < rows.num_rows(); ++n) parent.set(n * drafts, -1);  // the file has 0
    params.parent = view_as(parent, {tokens});
  }
};

}  // namespace

void run_golden_conv_spec(GoldenCase& golden) {
  const int64_t drafts = golden.param_int("draft_tokens");
  const int64_t dim = golden.param_int("dim");
  const GoldenRows rows = draft_rows(golden, drafts);
  const int64_t batch = rows.num_rows();
  const int64_t tokens = rows.num_tokens();
  const HostTensor& weight = golden.tensor("weight", {dim, kAnyGoldenSize});
  const int64_t tail = weight.shape()[1] - 1;
  const HostTensor before = golden.pool("conv_pool_before", {kAnyGoldenSize, dim, tail});
  const HostTensor& x = golden.tensor("x", {batch, drafts, dim});
  HostTensor parent;
  if (golden.has("retrieve_next_token")) parent = parents_from_links(golden, rows, drafts);
  HostTensor window = before.clone();
  HostTensor out(x.dtype(), {tokens, dim});
  fill_nan(out);

  CausalConv1dVerifyParams params;
  params.conv.rows = rows.tensors();
  params.conv.x = view_as(x, {tokens, dim});
  params.conv.weight = weight;
  params.conv.bias = golden.tensor("bias", {dim});
  params.conv.window = window;
  params.conv.out = out;
  if (parent.defined()) params.parent = view_as(parent, {tokens});
  golden.call(kConvVerify, params);

  const std::vector<int64_t> live = rows.tokens(true);
  const ConstTensorView ref =
      view_as(golden.tensor("out_ref", {batch, drafts, dim}), {tokens, dim});
  golden.judge_output("out", take(out, live), take(ref, live), "out");
  golden.judge_padding("out padding", out, rows.tokens(false));
  golden.judge_exact("windows not written", window, before);

  ZeroAttention zero(before.shape()[0], tokens);
  const HostTensor windows = commit_every_node(
      golden, rows, drafts, before, [&](const HostTensor& node, HostTensor& pool) {
        KdaCommitParams commit;
        commit.rows = params.conv.rows;
        commit.parent = params.parent;
        commit.accepted_node = node;
        commit.record = {zero.u, zero.k, zero.inverse_norm, zero.alpha};
        commit.conv_x = params.conv.x;
        commit.state = zero.state;
        commit.window = pool;
        golden.call(kKdaCommit, commit);
      });
  golden.judge_exact(
      "intermediate_windows", windows,
      take(golden.tensor("intermediate_windows", {batch, drafts, dim, tail}), live_rows(rows)));
}

void run_golden_kda_verify(GoldenCase& golden) {
  KdaDrafts c(golden);
  golden.call(kKdaVerify, c.params);

  const std::vector<int64_t> live = c.rows.tokens(true);
  const int64_t value_heads = c.out.shape()[1];
  const int64_t v_dim = c.out.shape()[2];
  const ConstTensorView ref =
      golden.tensor("o_ref", {1, c.tokens, value_heads, v_dim}).view().select(0, 0);
  golden.judge_output("o", take(c.out, live), take(ref, live), "o");
  golden.judge_padding("o padding", c.out, c.rows.tokens(false));
  golden.judge_exact("states not written", c.state, c.before);

  const HostTensor states = commit_every_node(golden, c.rows, c.drafts, c.before,
                                              [&](const HostTensor& node, HostTensor& pool) {
                                                KdaCommitParams commit;
                                                commit.rows = c.params.kda.rows;
                                                commit.parent = c.params.parent;
                                                commit.accepted_node = node;
                                                commit.record = c.params.record;
                                                commit.state = pool;
                                                golden.call(kKdaCommit, commit);
                                              });
  golden.judge_state(
      "intermediate_states", states,
      golden.tensor("intermediate_states_ref",
                    {states.shape()[0], c.drafts, value_heads, v_dim, c.before.shape()[3]}),
      "intermediate_states");
}

void run_golden_lightning_mtp(GoldenCase& golden) {
  const int64_t drafts = golden.param_int("draft_tokens");
  const int64_t heads = golden.param_int("H");
  const int64_t dim = golden.param_int("D");
  const GoldenRows rows = draft_rows(golden, drafts);
  const int64_t tokens = rows.num_tokens();
  const HostTensor before = golden.pool("pool_before", {kAnyGoldenSize, heads, dim, dim});
  HostTensor state = before.clone();
  const HostTensor& q = golden.tensor("q", {tokens, heads, dim});
  HostTensor out(q.dtype(), {tokens, heads, dim});
  fill_nan(out);
  HostTensor record_k(q.dtype(), {tokens, heads, dim});
  HostTensor record_v(q.dtype(), {tokens, heads, dim});

  LightningVerifyParams params;
  params.lightning.rows = rows.tensors();
  params.lightning.q = q;
  params.lightning.k = golden.tensor("k", {tokens, heads, dim});
  params.lightning.v = golden.tensor("v", {tokens, heads, dim});
  params.lightning.slopes = golden.tensor("slopes", {heads});
  params.lightning.scale = lightning_scale(LightningVariant::kSegLa, dim);
  params.lightning.state = state;
  params.lightning.out = out;
  params.record = {record_k, record_v};
  golden.call(kLightningVerify, params);

  const std::vector<int64_t> live = rows.tokens(true);
  golden.judge_output("o", take(out, live),
                      take(golden.tensor("o_ref", {tokens, heads, dim}), live), "o");
  golden.judge_padding("o padding", out, rows.tokens(false));
  golden.judge_exact("states not written", state, before);

  const HostTensor states = commit_every_node(golden, rows, drafts, before,
                                              [&](const HostTensor& node, HostTensor& pool) {
                                                LightningCommitParams commit;
                                                commit.rows = params.lightning.rows;
                                                commit.accepted_node = node;
                                                commit.record = params.record;
                                                commit.slopes = params.lightning.slopes;
                                                commit.state = pool;
                                                golden.call(kLightningCommit, commit);
                                              });
  golden.judge_state(
      "intermediate_states", states,
      golden.tensor("intermediate_states_ref", {states.shape()[0], drafts, heads, dim, dim}),
      "intermediate_states");
}

namespace {

/// Per-draft states and windows of an engine, [layers, rows, drafts, ...] and their pools.
struct Scatter {
  int64_t layers = 0;
  int64_t rows = 0;
  int64_t drafts = 0;
  int64_t slots = 0;
  int64_t elements = 0;  // of a state
  int64_t dim = 0;       // of a window
  ConstTensorView states;
  ConstTensorView windows;  // [layers, rows, dim, drafts + 2], a window is 3 neighbours
};

/// dst[layer, to[i]] = src[layer, i, step[i]], one call a row; ids that are padding are skipped by
/// the operator.
void scatter_rows(GoldenCase& golden, const Scatter& s, const std::vector<int64_t>& step,
                  const std::vector<int64_t>& to, HostTensor& ssm, HostTensor& conv) {
  const TensorView ssm_pools(ssm.data(), ssm.dtype(), {s.layers, s.slots, s.elements});
  const TensorView conv_pools(conv.data(), conv.dtype(), {s.layers, s.slots, s.dim, 3});
  for (size_t i = 0; i < step.size(); ++i) {
    std::vector<ConstTensorView> src;
    std::vector<TensorView> dst;
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      src.push_back(s.states.select(0, layer).select(0, static_cast<int64_t>(i)));
      dst.push_back(ssm_pools.select(0, layer));
      ConstTensorView window = s.windows.select(0, layer).select(0, static_cast<int64_t>(i));
      ConstTensorView shifted(window.data, window.dtype, {s.drafts, s.dim, 3});
      shifted.stride = {1, window.stride[0], 1};
      src.push_back(shifted);
      dst.push_back(conv_pools.select(0, layer));
    }
    const HostTensor from = i64_tensor({step[i]});
    const HostTensor slot = i64_tensor({to[i]});
    StateCopyParams params;
    params.src = src;
    params.dst = dst;
    params.src_slots = from;
    params.dst_slots = slot;
    golden.call(kStateCopy, params);
  }
}

}  // namespace

void run_golden_spec_commit(GoldenCase& golden) {
  const HostTensor& states = *require(golden.file().tensor("intermediate_ssm"));
  const HostTensor& windows = golden.tensor(
      "intermediate_conv_dedup", {kAnyGoldenSize, kAnyGoldenSize, kAnyGoldenSize, kAnyGoldenSize});
  const HostTensor& ssm_before = *require(golden.file().tensor("ssm_before"));
  Scatter s;
  s.layers = golden.param_int("layers");
  s.slots = golden.param_int("slots");
  s.drafts = golden.param_int("draft_tokens");
  s.dim = golden.param_int("conv_dim");
  s.rows = windows.shape()[1];
  s.elements = ssm_before.num_elements() / (s.layers * s.slots);
  golden.tensor("intermediate_conv_dedup", {s.layers, s.rows, s.dim, s.drafts + 2});
  if (s.elements * s.layers * s.slots != ssm_before.num_elements() ||
      states.num_elements() != s.layers * s.rows * s.drafts * s.elements) {
    throw GoldenError{Status(StatusCode::kDataLoss, "states and pools do not fit")};
  }
  s.states = view_as(states, {s.layers, s.rows, s.drafts, s.elements});
  s.windows = windows;
  const auto pool_view = [&](const char* name) {
    const HostTensor& stored = *require(golden.file().tensor(name));
    if (stored.num_elements() != ssm_before.num_elements()) {
      throw GoldenError{Status(StatusCode::kDataLoss, std::string(name) + ": not the pool's size")};
    }
    return view_as(stored, {s.layers, s.slots, s.elements});
  };
  HostTensor ssm = copy_of(pool_view("ssm_before"));
  HostTensor conv = golden.pool("conv_before", {s.layers, s.slots, s.dim, 3});
  scatter_rows(golden, s, golden.ints("last_correct_step_indices"), golden.ints("state_indices"),
               ssm, conv);
  golden.judge_exact("ssm_after", ssm, pool_view("ssm_after"));
  golden.judge_exact("conv_after", conv,
                     golden.tensor("conv_after", {s.layers, s.slots, s.dim, 3}));
  scatter_rows(golden, s, golden.ints("mamba_steps_to_track"), golden.ints("mamba_track_indices"),
               ssm, conv);
  golden.judge_exact("ssm_after_track", ssm, pool_view("ssm_after_track"));
  golden.judge_exact("conv_after_track", conv,
                     golden.tensor("conv_after_track", {s.layers, s.slots, s.dim, 3}));
}

namespace {

void track(GoldenCase& golden, const std::vector<int64_t>& from, const std::string& suffix) {
  const HostTensor& ssm_after = golden.tensor(
      "ssm_after" + suffix, {kAnyGoldenSize, kAnyGoldenSize, kAnyGoldenSize, kAnyGoldenSize});
  const HostTensor& conv_after =
      golden.tensor("conv_after" + suffix, {kAnyGoldenSize, kAnyGoldenSize, 3});
  HostTensor ssm = golden
                       .tensor("ssm_before", {ssm_after.shape()[0], ssm_after.shape()[1],
                                              ssm_after.shape()[2], ssm_after.shape()[3]})
                       .clone();
  HostTensor conv =
      golden.tensor("conv_before", {conv_after.shape()[0], conv_after.shape()[1], 3}).clone();
  const HostTensor src_slots = i64_tensor(from);
  const HostTensor dst_slots = i64_tensor(golden.ints("mamba_track_indices"));
  const std::array<ConstTensorView, 2> src{ssm.view(), conv.view()};
  const std::array<TensorView, 2> dst{ssm.view(), conv.view()};
  StateCopyParams params;
  params.src = src;
  params.dst = dst;
  params.src_slots = src_slots;
  params.dst_slots = dst_slots;
  golden.call(kStateCopy, params);
  golden.judge_exact("ssm_after" + suffix, ssm, ssm_after);
  golden.judge_exact("conv_after" + suffix, conv, conv_after);
}

}  // namespace

void run_golden_track_decode(GoldenCase& golden) {
  std::vector<int64_t> from = golden.ints("cache_indices");
  const std::vector<int64_t> mask = golden.ints("mamba_track_mask");
  if (mask.size() != from.size()) {
    throw GoldenError{Status(StatusCode::kDataLoss, "mamba_track_mask: not one a row")};
  }
  for (size_t i = 0; i < from.size(); ++i) {
    if (mask[i] == 0) from[i] = kPadSlot;
  }
  track(golden, from, "");
  track(golden, golden.ints("cache_indices_freed"), "_freed");
}

}  // namespace linestate::testing
