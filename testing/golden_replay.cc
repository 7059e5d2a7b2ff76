// Golden files of buffered decode. The files' rings hold other records than ours (a rounded key and
// its decay instead of the decayed key), so what is compared is what a caller sees: outputs, the
// protocol's cursors, and the states that a flush or a fold leaves.
#include <cmath>
#include <cstring>
#include <utility>

#include "linestate/ops/replay_ring.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/golden_case.h"

namespace linestate::testing {
namespace {

template <typename Params>
Result<int64_t> no_workspace(const Params&, const ExecContext&, std::string_view) {
  return int64_t{0};
}

constexpr GoldenOp<ReplayStepParams> kStepBegin = {
    replay_step_begin, no_workspace<ReplayStepParams>, explain_replay_step_begin};
constexpr GoldenOp<KdaReplayParams> kReplay = {kda_decode_replay, kda_decode_replay_workspace_bytes,
                                               explain_kda_decode_replay};
constexpr GoldenOp<ReplayFoldParams> kFold = {replay_fold, no_workspace<ReplayFoldParams>,
                                              explain_replay_fold};

/// A pool, its ring and its cursors.
struct Pool {
  HostTensor state, keys, values, gamma, cursor;

  Pool(const HostTensor& before, int64_t length, DType ring)
      : state(before.clone()),
        keys(ring, {before.shape()[0], before.shape()[1], length - 1, before.shape()[3]}),
        values(ring, {before.shape()[0], before.shape()[1], length - 1, before.shape()[2]}),
        gamma(DType::kF32, {before.shape()[0], before.shape()[1], before.shape()[3]}),
        cursor(DType::kI32, {before.shape()[0]}) {
    fill_nan(keys);  // records above the cursor are stale
    fill_nan(values);
    fill_nan(gamma);
  }
  ReplayRing ring() { return {keys, values, gamma}; }
};

/// bf16(sigmoid(b)): the beta that the files' kernel used.
HostTensor rounded_beta(const HostTensor& logits) {
  HostTensor beta(DType::kBF16, logits.shape());
  for (int64_t i = 0; i < logits.num_elements(); ++i) {
    beta.set(i, 1.0 / (1.0 + std::exp(-logits.at(i))));
  }
  return beta;
}

class Replay {
 public:
  explicit Replay(GoldenCase& golden)
      : golden_(golden),
        rows_(GoldenRows::decode(golden.ints("cache_indices"))),
        heads_(golden.param_int("H")),
        value_heads_(golden.param_int("HV")),
        k_dim_(golden.param_int("K")),
        v_dim_(golden.param_int("V")),
        steps_(golden.param_int("steps")),
        before_(golden.pool("pool_before", {kAnyGoldenSize, value_heads_, v_dim_, k_dim_})),
        beta_(rounded_beta(golden.tensor("b", {steps_, rows_.num_rows(), value_heads_}))) {}

  const GoldenRows& rows() const { return rows_; }
  const HostTensor& before() const { return before_; }
  int64_t steps() const { return steps_; }
  HostTensor make_out() const {
    return HostTensor(DType::kBF16, {steps_ * rows_.num_rows(), value_heads_, v_dim_});
  }
  ConstTensorView out_ref() const {
    const HostTensor& ref =
        golden_.tensor("out_ref", {steps_, rows_.num_rows(), 1, value_heads_, v_dim_});
    return view_as(ref, {steps_ * rows_.num_rows(), value_heads_, v_dim_});
  }

  /// One step; `pending` and `flush` as the protocol gave them.
  void run(int64_t step, int64_t length, bool forced, Pool& pool, HostTensor& out,
           HostTensor& pending, HostTensor& flush) const {
    const int64_t batch = rows_.num_rows();
    const HostTensor& file_flags = golden_.tensor("force_flush", {steps_, batch});
    HostTensor flags(DType::kU8, {batch});
    for (int64_t n = 0; n < batch; ++n) flags.set(n, file_flags.at(step * batch + n));
    ReplayStepParams begin;
    begin.rows = rows_.tensors();
    if (forced) begin.force_flush = flags;
    begin.ring_length = length;
    begin.cursor = pool.cursor;
    begin.pending = pending;
    begin.flush = flush;
    golden_.call(kStepBegin, begin);

    const int64_t channels = 2 * heads_ * k_dim_ + value_heads_ * v_dim_;
    const HostTensor& qkv = golden_.tensor("mixed_qkv", {steps_, batch, channels});
    const HostTensor& gate = golden_.tensor("a", {steps_, batch, value_heads_, k_dim_});
    const PackedQkv packed =
        require(split_packed_qkv(qkv.view().select(0, step), heads_, value_heads_, k_dim_, v_dim_));
    KdaReplayParams params;
    params.kda.rows = rows_.tensors();
    params.kda.q = packed.q;
    params.kda.k = packed.k;
    params.kda.v = packed.v;
    params.kda.gate = gate.view().select(0, step);
    params.kda.beta = beta_.view().select(0, step);
    params.kda.beta_form = KdaBeta::kProbability;
    params.kda.A_log = golden_.tensor("A_log", {value_heads_});
    params.kda.dt_bias =
        view_as(golden_.tensor("dt_bias", {value_heads_ * k_dim_}), {value_heads_, k_dim_});
    params.kda.scale = static_cast<float>(require(golden_.params().get_double("scale")));
    params.kda.state = pool.state;
    params.kda.out = out.view().slice(0, step * batch, (step + 1) * batch);
    params.ring = pool.ring();
    params.pending = pending;
    params.flush = flush;
    golden_.call(kReplay, params);
  }

  /// The pool with the row's records folded in.
  HostTensor folded(const Pool& pool, int64_t row) const {
    HostTensor state = pool.state.clone();
    HostTensor keys = pool.keys.clone();
    HostTensor values = pool.values.clone();
    HostTensor gamma = pool.gamma.clone();
    HostTensor cursor = pool.cursor.clone();
    const HostTensor slots = i64_tensor({rows_.slots()[static_cast<size_t>(row)]});
    ReplayFoldLayer layer;
    layer.state = state;
    layer.ring = {keys, values, gamma};
    ReplayFoldParams params;
    params.layers = {&layer, 1};
    params.slots = slots;
    params.cursor = cursor;
    golden_.call(kFold, params);
    return state;
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
  HostTensor beta_;
};

/// The flushes of the file and the states seen at them.
struct Flushes {
  std::vector<int64_t> step;
  std::vector<int64_t> row;
  HostTensor states;

  Flushes(GoldenCase& golden, const HostTensor& pool)
      : step(golden.ints("flush_step")), row(golden.ints("flush_row")) {
    if (step.size() != row.size()) {
      throw GoldenError{Status(StatusCode::kDataLoss, "flush_step and flush_row do not fit")};
    }
    states = HostTensor(pool.dtype(), {static_cast<int64_t>(step.size()), pool.shape()[1],
                                       pool.shape()[2], pool.shape()[3]});
  }
  void keep(size_t index, const ConstTensorView& pool, int64_t slot) {
    const HostTensor one = copy_of(pool.slice(0, slot, slot + 1));
    std::memcpy(static_cast<char*>(states.data()) + static_cast<int64_t>(index) * one.bytes(),
                one.data(), static_cast<size_t>(one.bytes()));
  }
};

/// The file's own ring length and forced flushes.
void judge_protocol(GoldenCase& golden, const Replay& replay, DType ring) {
  const GoldenRows& rows = replay.rows();
  const int64_t batch = rows.num_rows();
  const HostTensor& write_pos = golden.tensor("write_pos", {replay.steps(), batch});
  Flushes flushes(golden, replay.before());
  Pool pool(replay.before(), golden.param_int("L"), ring);
  HostTensor out = replay.make_out();
  fill_nan(out);
  std::string different;
  for (int64_t step = 0; step < replay.steps(); ++step) {
    HostTensor pending(DType::kI32, {batch});
    HostTensor flush(DType::kU8, {batch});
    replay.run(step, golden.param_int("L"), true, pool, out, pending, flush);
    for (int64_t n = 0; n < batch; ++n) {
      const int64_t slot = rows.slots()[static_cast<size_t>(n)];
      if (slot < 0) continue;
      bool expected = false;
      for (size_t f = 0; f < flushes.step.size(); ++f) {
        if (flushes.step[f] != step || flushes.row[f] != n) continue;
        expected = true;
        flushes.keep(f, pool.state, slot);
      }
      const bool same =
          pending.at(n) == write_pos.at(step * batch + n) && (flush.at(n) != 0) == expected;
      if (!same && different.empty()) {
        different = "step " + std::to_string(step) + ", row " + std::to_string(n);
      }
    }
  }
  const std::vector<int64_t> live = rows.tokens(true, replay.steps());
  golden.judge_output("out", take(out, live), take(replay.out_ref(), live), "out");
  golden.judge_padding("out padding", out, rows.tokens(false, replay.steps()));
  golden.judge_bits("cursors and flushes", different);
  const HostTensor& ref = golden.tensor(
      "flush_state_ref", {static_cast<int64_t>(flushes.step.size()), replay.before().shape()[1],
                          replay.before().shape()[2], replay.before().shape()[3]});
  golden.judge_state("flushed states", flushes.states, ref, "flush_state");
  golden.judge_untouched("other slots", pool.state, replay.before(), rows.live_slots());
}

/// A ring that no token fills, folded where the file flushes.
void judge_fold(GoldenCase& golden, const Replay& replay, DType ring) {
  const GoldenRows& rows = replay.rows();
  const int64_t length = replay.steps() + 1;
  Flushes flushes(golden, replay.before());
  Pool pool(replay.before(), length, ring);
  HostTensor out = replay.make_out();
  for (int64_t step = 0; step < replay.steps(); ++step) {
    HostTensor pending(DType::kI32, {rows.num_rows()});
    HostTensor flush(DType::kU8, {rows.num_rows()});
    replay.run(step, length, false, pool, out, pending, flush);
    for (size_t f = 0; f < flushes.step.size(); ++f) {
      if (flushes.step[f] != step) continue;
      const HostTensor state = replay.folded(pool, flushes.row[f]);
      flushes.keep(f, state, rows.slots()[static_cast<size_t>(flushes.row[f])]);
    }
  }
  const HostTensor& ref = golden.tensor(
      "flush_state_ref", {static_cast<int64_t>(flushes.step.size()), replay.before().shape()[1],
                          replay.before().shape()[2], replay.before().shape()[3]});
  golden.judge_state("folded states", flushes.states, ref, "flush_state");
}

}  // namespace

void run_golden_kda_replayssm(GoldenCase& golden) {
  const Replay replay(golden);
  const bool wide = require(golden.params().get_string("ring_dtype_d_k")) == "F32";
  const DType ring = wide ? DType::kF32 : DType::kF16;
  judge_protocol(golden, replay, ring);
  judge_fold(golden, replay, ring);
}

}  // namespace linestate::testing
