// Every operator with a slot, behind one face: rows in, pools and outputs to look at. The rules
// that hold in every operator are tested over this list.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "linestate/ops/causal_conv1d.h"
#include "linestate/ops/kda_verify.h"
#include "linestate/ops/lightning_verify.h"
#include "linestate/ops/replay_ring.h"
#include "linestate/ops/state_ops.h"
#include "ops/causal_conv1d/conv_case.h"
#include "ops/kda/kda_verify_case.h"
#include "testing/lightning_case.h"
#include "tests/oracle_case.h"

namespace linestate::testing {

struct ProbeRow {
  int32_t slot = 0;
  int64_t start = 0;
};

struct ProbeSetup {
  DType io = DType::kF32;
  DType state = DType::kF32;
  std::vector<ProbeRow> rows;
  int64_t slots = 8;
};

struct OpProbe {
  int64_t tokens_per_row = 1;
  std::vector<HostTensor*> pools;         // [P, ...]
  std::vector<HostTensor*> outputs;       // [T, ...]
  std::vector<const HostTensor*> inputs;  // must not change
  std::function<std::string(const std::string& kernel, int threads)> run;
  std::shared_ptr<void> memory;
};

using ProbeMaker = OpProbe (*)(const ProbeSetup&);

inline std::vector<KdaRow> kda_rows(const ProbeSetup& setup, int32_t tokens) {
  std::vector<KdaRow> out;
  for (const ProbeRow& row : setup.rows) out.push_back({row.slot, row.start, tokens});
  return out;
}
inline KdaShape kda_shape(const ProbeSetup& setup) {
  KdaShape shape = small_kda_shape();
  shape.H = 1;
  shape.io = shape.out = setup.io;
  shape.state = setup.state;
  shape.slots = setup.slots;
  return shape;
}
inline LightningShape lightning_shape(const ProbeSetup& setup, int32_t tokens) {
  LightningShape shape;
  for (const ProbeRow& row : setup.rows) shape.rows.push_back({row.slot, row.start, tokens});
  shape.dim = 32;
  shape.slots = setup.slots;
  shape.io = shape.out = setup.io;
  shape.state = setup.state;
  return shape;
}

enum class ConvPhase { kPrefill, kUpdate, kVerify };

inline OpProbe conv_probe(const ProbeSetup& setup, ConvPhase phase) {
  const int32_t tokens = phase == ConvPhase::kUpdate ? 1 : 3;
  std::vector<Row> rows;
  for (const ProbeRow& row : setup.rows) {
    rows.push_back({row.slot, RowKind::kExtend, row.start, tokens, -1, -1});
  }
  ConvShape shape;
  shape.channels = 40;
  shape.slots = setup.slots;
  shape.x = shape.out = shape.window = setup.io;
  auto c = std::make_shared<ConvCase>(shape, rows);
  OpProbe probe{tokens, {&c->window}, {&c->out}, {&c->x, &c->weight, &c->bias}, {}, c};
  ConvCase* raw = c.get();
  probe.run = [raw, phase](const std::string& kernel, int threads) {
    if (phase == ConvPhase::kVerify) {
      const CausalConv1dVerifyParams params{raw->params(), {}};
      return call_op(causal_conv1d_verify, causal_conv1d_verify_workspace_bytes, params, kernel,
                     threads);
    }
    const bool prefill = phase == ConvPhase::kPrefill;
    return call_op(
        prefill ? causal_conv1d_prefill : causal_conv1d_update,
        prefill ? causal_conv1d_prefill_workspace_bytes : causal_conv1d_update_workspace_bytes,
        raw->params(), kernel, threads);
  };
  return probe;
}

inline OpProbe kda_probe(const ProbeSetup& setup, KdaPhase phase) {
  const int32_t tokens = phase == KdaPhase::kDecode ? 1 : 3;
  const auto T = static_cast<int64_t>(setup.rows.size()) * tokens;
  auto p = std::make_shared<KdaProblem>(make_kda_problem(kda_shape(setup), T, 30));
  p->set_rows(kda_rows(setup, tokens));
  OpProbe probe{tokens, {&p->state}, {&p->out}, {&p->q, &p->k, &p->v, &p->gate, &p->beta}, {}, p};
  KdaProblem* raw = p.get();
  probe.run = [raw, phase](const std::string& kernel, int threads) {
    return run_kda(phase, raw->params(), kernel, threads);
  };
  return probe;
}

inline OpProbe kda_draft_probe(const ProbeSetup& setup, bool commit) {
  auto c =
      std::make_shared<KdaVerifyCase>(make_verify_case(kda_shape(setup), kda_rows(setup, 3), 31));
  KdaProblem& p = c->problem;
  OpProbe probe{3, {&p.state, &c->window}, {&p.out}, {&p.q, &p.k, &p.v, &p.gate, &p.beta}, {}, c};
  KdaVerifyCase* raw = c.get();
  if (commit) {
    probe.outputs.clear();
    probe.inputs = {&c->u, &c->k, &c->k_inverse_norm, &c->alpha, &c->conv_x};
    EXPECT_EQ(raw->verify("ref"), "");
  }
  const std::vector<int32_t> nodes(setup.rows.size(), 1);
  probe.run = [raw, commit, nodes](const std::string& kernel, int threads) {
    return commit ? raw->commit(kernel, nodes, threads) : raw->verify(kernel, threads);
  };
  return probe;
}

inline OpProbe lightning_probe(const ProbeSetup& setup, bool decode) {
  const int32_t tokens = decode ? 1 : 3;
  auto c = std::make_shared<LightningCase>(lightning_shape(setup, tokens));
  OpProbe probe{tokens, {&c->state}, {&c->out}, {&c->q, &c->k, &c->v, &c->slopes}, {}, c};
  LightningCase* raw = c.get();
  probe.run = [raw, decode](const std::string& kernel, int threads) {
    return call_op(decode ? lightning_decode : lightning_prefill,
                   decode ? lightning_decode_workspace_bytes : lightning_prefill_workspace_bytes,
                   raw->params, kernel, threads);
  };
  return probe;
}

struct LightningDrafts {
  LightningCase base;
  HostTensor k, v, accepted;
  explicit LightningDrafts(const LightningShape& shape)
      : base(shape), k(base.k.clone()), v(base.v.clone()) {
    fill_nan(k);
    fill_nan(v);
    accepted = i32_tensor(std::vector<int32_t>(shape.rows.size(), 1));
  }
  std::string verify(const std::string& kernel, int threads) {
    const LightningVerifyParams params{base.params, {}, {k, v}};
    return call_op(lightning_verify, lightning_verify_workspace_bytes, params, kernel, threads);
  }
  std::string commit(const std::string& kernel, int threads) {
    LightningCommitParams params;
    params.rows = base.params.rows;
    params.accepted_node = accepted;
    params.record = {k, v};
    params.slopes = base.slopes;
    params.state = base.state;
    return call_op(lightning_commit, lightning_commit_workspace_bytes, params, kernel, threads);
  }
};

inline OpProbe lightning_draft_probe(const ProbeSetup& setup, bool commit) {
  auto c = std::make_shared<LightningDrafts>(lightning_shape(setup, 3));
  LightningCase& base = c->base;
  OpProbe probe{3, {&base.state}, {&base.out}, {&base.q, &base.k, &base.v, &base.slopes}, {}, c};
  LightningDrafts* raw = c.get();
  if (commit) {
    probe.outputs.clear();
    probe.inputs = {&c->k, &c->v, &base.slopes};
    EXPECT_EQ(raw->verify("ref", 1), "");
  }
  probe.run = [raw, commit](const std::string& kernel, int threads) {
    return commit ? raw->commit(kernel, threads) : raw->verify(kernel, threads);
  };
  return probe;
}

/// A ring of R = 4 with two pending records in every slot; `keys` etc. as in ReplayRing.
struct RingMemory {
  static constexpr int64_t kLength = 4;
  HostTensor keys, values, gamma, cursor, pending, flush;
  RingMemory(const std::vector<int64_t>& keys_shape, const std::vector<int64_t>& values_shape,
             const std::vector<int64_t>& gamma_shape, int64_t rows)
      : keys(DType::kF32, keys_shape),
        values(DType::kF32, values_shape),
        gamma(DType::kF32, gamma_shape),
        cursor(DType::kI32, {keys_shape[0]}),
        pending(DType::kI32, {rows}),
        flush(DType::kU8, {rows}) {
    fill_normal(keys, 40, 0.1);
    fill_normal(values, 41);
    fill_uniform(gamma, 42, 0.1, 1.0);
    for (int64_t s = 0; s < cursor.num_elements(); ++s) cursor.set(s, 2);
  }
  std::string begin(const RowTensors& rows, const std::string& kernel) {
    ReplayStepParams p;
    p.rows = rows;
    p.ring_length = kLength;
    p.cursor = cursor;
    p.pending = pending;
    p.flush = flush;
    const Status status = replay_step_begin(p, {}, kernel);
    return status.ok() ? "" : status.to_string();
  }
};

struct KdaRing {
  KdaProblem problem;
  RingMemory ring;
};
struct LightningRing {
  LightningCase base;
  RingMemory ring;
  LightningRing(const LightningShape& s, const std::vector<int64_t>& records)
      : base(s), ring(records, records, {s.slots, 1}, static_cast<int64_t>(s.rows.size())) {}
};

inline OpProbe kda_replay_probe(const ProbeSetup& setup, bool fold) {
  const KdaShape s = kda_shape(setup);
  const auto N = static_cast<int64_t>(setup.rows.size());
  constexpr int64_t kRecords = RingMemory::kLength - 1;
  auto c = std::make_shared<KdaRing>(
      KdaRing{make_kda_problem(s, N, 32),
              RingMemory({s.slots, s.HV, kRecords, s.K}, {s.slots, s.HV, kRecords, s.V},
                         {s.slots, s.HV, s.K}, N)});
  KdaProblem& p = c->problem;
  RingMemory& r = c->ring;
  p.set_rows(kda_rows(setup, 1));
  OpProbe probe{1,        {&p.state, &r.keys, &r.values, &r.gamma, &r.cursor},
                {&p.out}, {&p.q, &p.k, &p.v, &p.gate, &p.beta},
                {},       c};
  if (fold) probe.outputs.clear();
  KdaRing* raw = c.get();
  probe.run = [raw, fold](const std::string& kernel, int threads) {
    const ReplayRing ring{raw->ring.keys, raw->ring.values, raw->ring.gamma};
    if (fold) {
      const ReplayFoldLayer layer{raw->problem.state, ring, {}, 0};
      ExecContext context;
      context.num_threads = threads;
      const Status status =
          replay_fold({{&layer, 1}, raw->problem.slot, raw->ring.cursor}, context, kernel);
      return status.ok() ? std::string() : status.to_string();
    }
    const KdaReplayParams params{raw->problem.params(), ring, raw->ring.pending, raw->ring.flush};
    const std::string error = raw->ring.begin(params.kda.rows, kernel);
    if (!error.empty()) return error;
    return call_op(kda_decode_replay, kda_decode_replay_workspace_bytes, params, kernel, threads);
  };
  return probe;
}

inline OpProbe lightning_replay_probe(const ProbeSetup& setup) {
  const LightningShape s = lightning_shape(setup, 1);
  const std::vector<int64_t> records{s.slots, s.heads, RingMemory::kLength - 1, s.dim};
  auto c = std::make_shared<LightningRing>(s, records);
  LightningCase& base = c->base;
  RingMemory& r = c->ring;
  OpProbe probe{1,           {&base.state, &r.keys, &r.values, &r.cursor},
                {&base.out}, {&base.q, &base.k, &base.v, &base.slopes},
                {},          c};
  LightningRing* raw = c.get();
  probe.run = [raw](const std::string& kernel, int threads) {
    const LightningReplayParams params{raw->base.params,
                                       {raw->ring.keys, raw->ring.values, {}},
                                       raw->ring.pending,
                                       raw->ring.flush};
    const std::string error = raw->ring.begin(params.lightning.rows, kernel);
    if (!error.empty()) return error;
    return call_op(lightning_decode_replay, lightning_decode_replay_workspace_bytes, params, kernel,
                   threads);
  };
  return probe;
}

struct NamedProbe {
  const char* name;
  ProbeMaker make;
};
inline void PrintTo(const NamedProbe& probe, std::ostream* out) { *out << probe.name; }

/// Operators that take rows. state_clear and state_copy take bare ids and are tested beside them.
inline const std::vector<NamedProbe> kProbes = {
    {"conv_prefill", [](const ProbeSetup& s) { return conv_probe(s, ConvPhase::kPrefill); }},
    {"conv_update", [](const ProbeSetup& s) { return conv_probe(s, ConvPhase::kUpdate); }},
    {"conv_verify", [](const ProbeSetup& s) { return conv_probe(s, ConvPhase::kVerify); }},
    {"kda_prefill", [](const ProbeSetup& s) { return kda_probe(s, KdaPhase::kPrefill); }},
    {"kda_decode", [](const ProbeSetup& s) { return kda_probe(s, KdaPhase::kDecode); }},
    {"kda_verify", [](const ProbeSetup& s) { return kda_draft_probe(s, false); }},
    {"kda_commit", [](const ProbeSetup& s) { return kda_draft_probe(s, true); }},
    {"kda_replay", [](const ProbeSetup& s) { return kda_replay_probe(s, false); }},
    {"replay_fold", [](const ProbeSetup& s) { return kda_replay_probe(s, true); }},
    {"lightning_prefill", [](const ProbeSetup& s) { return lightning_probe(s, false); }},
    {"lightning_decode", [](const ProbeSetup& s) { return lightning_probe(s, true); }},
    {"lightning_verify", [](const ProbeSetup& s) { return lightning_draft_probe(s, false); }},
    {"lightning_commit", [](const ProbeSetup& s) { return lightning_draft_probe(s, true); }},
    {"lightning_replay", [](const ProbeSetup& s) { return lightning_replay_probe(s); }},
};

inline std::vector<HostTensor> copies(const std::vector<HostTensor*>& tensors) {
  std::vector<HostTensor> out;
  for (const HostTensor* tensor : tensors) out.push_back(tensor->clone());
  return out;
}

/// (operator, kernel row), named "kda_decode_cpu".
class OpRule : public ::testing::TestWithParam<std::tuple<NamedProbe, std::string>> {
 protected:
  OpProbe make(const ProbeSetup& setup) const { return std::get<0>(GetParam()).make(setup); }
  const std::string& kernel() const { return std::get<1>(GetParam()); }
  std::string op() const { return std::get<0>(GetParam()).name; }
};
inline std::string op_rule_name(
    const ::testing::TestParamInfo<std::tuple<NamedProbe, std::string>>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param);
}

/// io and pool dtypes: every one of either, with the others at f32 and together.
inline const std::vector<std::pair<DType, DType>> kDTypePairs = {
    {DType::kF32, DType::kF32},  {DType::kBF16, DType::kF32}, {DType::kF16, DType::kF32},
    {DType::kF32, DType::kBF16}, {DType::kF32, DType::kF16},  {DType::kBF16, DType::kBF16},
    {DType::kF16, DType::kF16}};

}  // namespace linestate::testing
