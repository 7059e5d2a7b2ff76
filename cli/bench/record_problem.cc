// Operators over records: commits of drafts and decoding into a ring.
#include <utility>

#include "cli/bench/bench_problem_parts.h"
#include "linestate/ops/kda_verify.h"
#include "linestate/ops/lightning_verify.h"
#include "linestate/ops/replay_ring.h"

namespace linestate::cli {
namespace {

// The last node of every row: all drafts accepted.
TensorView last_nodes(TensorMaker& make, const BenchSpec& spec) {
  std::vector<int32_t> nodes;
  for (const int32_t tokens : spec.layout.tokens) nodes.push_back(tokens - 1);
  return make.copy(testing::i32_tensor(nodes));
}

BenchProblem kda_commit_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec,
                                const LayerWeightTensors& weights) {
  const HeadShape& heads = spec.layer.heads;
  const int64_t tokens = spec.layout.total();
  const TensorView state = shared_kda_params(make, spec, weights, parts->rows.slots).state;
  const TensorView window = make_windows(make, spec, parts->rows.slots);
  const TensorView accepted = last_nodes(make, spec);
  return finish<KdaCommitParams>(
      parts, make,
      [&] {
        KdaCommitParams params;
        params.accepted_node = accepted;
        params.record.u = make.normal(DType::kF32, {tokens, heads.num_value_heads, heads.v_dim});
        params.record.k = make.normal(spec.io_dtype, {tokens, heads.num_heads, heads.k_dim});
        params.record.k_inverse_norm =
            make.normal(DType::kF32, {tokens, heads.num_heads}, 0.005, 0.09);
        params.record.alpha =
            make.normal(DType::kF32, {tokens, heads.num_value_heads, heads.k_dim}, 0.01, 0.9);
        params.conv_x = make.normal(spec.io_dtype, {tokens, spec.layer.conv_channels()});
        params.state = state;
        params.window = window;
        return params;
      },
      [rows = parts->rows](KdaCommitParams& params, int64_t call) {
        params.rows = rows.of_call(call);
      },
      {kda_commit, explain_kda_commit, kda_commit_workspace_bytes});
}

BenchProblem lightning_commit_problem(const SharedParts& parts, TensorMaker& make,
                                      const BenchSpec& spec, const LayerWeightTensors& weights) {
  const HeadShape& heads = spec.layer.heads;
  const int64_t tokens = spec.layout.total();
  const LightningParams shared = shared_lightning_params(make, spec, weights, parts->rows.slots);
  const TensorView accepted = last_nodes(make, spec);
  return finish<LightningCommitParams>(
      parts, make,
      [&] {
        LightningCommitParams params;
        params.accepted_node = accepted;
        params.record.k = make.normal(spec.io_dtype, {tokens, heads.num_heads, heads.k_dim}, 0.3);
        params.record.v = make.normal(spec.io_dtype, {tokens, heads.num_heads, heads.v_dim});
        params.slopes = shared.slopes;
        params.state = shared.state;
        return params;
      },
      [rows = parts->rows](LightningCommitParams& params, int64_t call) {
        params.rows = rows.of_call(call);
      },
      {lightning_commit, explain_lightning_commit, lightning_commit_workspace_bytes});
}

// Row n of call c is at place (c + n) mod R of its ring: what a pool of requests that began at
// different times looks like. A group of slots takes its turns in that order too, because a turn is
// whole rings.
struct RingSteps {
  TensorView pending;  // [R, N]
  TensorView flush;

  template <typename Params>
  void set(Params& params, int64_t call) const {
    const int64_t place = call % pending.shape[0];
    params.pending = pending.select(0, place);
    params.flush = flush.select(0, place);
  }
};

RingSteps make_ring_steps(TensorMaker& make, const BenchSpec& spec) {
  RingSteps steps;
  const int64_t rows = spec.layout.rows();
  testing::HostTensor pending(DType::kI32, {spec.ring_length, rows});
  testing::HostTensor flush(DType::kU8, {spec.ring_length, rows});
  for (int64_t place = 0; place < spec.ring_length; ++place) {
    for (int64_t n = 0; n < rows; ++n) {
      const int64_t at = (place + n) % spec.ring_length;
      pending.set(place * rows + n, static_cast<double>(at));
      flush.set(place * rows + n, at == spec.ring_length - 1 ? 1.0 : 0.0);
    }
  }
  steps.pending = make.copy(pending);
  steps.flush = make.copy(flush);
  return steps;
}

ReplayRing make_ring(TensorMaker& make, const BenchSpec& spec, int64_t slots) {
  const HeadShape& heads = spec.layer.heads;
  const int64_t records = spec.ring_length - 1;
  ReplayRing ring;
  ring.keys =
      make.normal(spec.ring_dtype, {slots, heads.num_value_heads, records, heads.k_dim}, 0.09);
  ring.values =
      make.normal(spec.ring_dtype, {slots, heads.num_value_heads, records, heads.v_dim}, 0.3);
  if (spec.op.layer == LayerKind::kKda) {
    ring.gamma = make.normal(DType::kF32, {slots, heads.num_value_heads, heads.k_dim}, 0.01, 0.9);
  }
  return ring;
}

}  // namespace

BenchProblem commit_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec,
                            const LayerWeightTensors& weights) {
  return spec.op.layer == LayerKind::kKda ? kda_commit_problem(parts, make, spec, weights)
                                          : lightning_commit_problem(parts, make, spec, weights);
}

BenchProblem ring_problem(const SharedParts& parts, TensorMaker& make, const BenchSpec& spec,
                          const LayerWeightTensors& weights) {
  const ReplayRing ring = make_ring(make, spec, parts->rows.slots);
  const RingSteps steps = make_ring_steps(make, spec);
  if (spec.op.layer == LayerKind::kKda) {
    const KdaParams shared = shared_kda_params(make, spec, weights, parts->rows.slots);
    return finish<KdaReplayParams>(
        parts, make,
        [&] {
          return KdaReplayParams{kda_params(make, spec, shared), ring, {}, {}};
        },
        [steps, rows = parts->rows](KdaReplayParams& params, int64_t call) {
          params.kda.rows = rows.of_call(call);
          steps.set(params, call);
        },
        {kda_decode_replay, explain_kda_decode_replay, kda_decode_replay_workspace_bytes});
  }
  const LightningParams shared = shared_lightning_params(make, spec, weights, parts->rows.slots);
  return finish<LightningReplayParams>(
      parts, make,
      [&] {
        return LightningReplayParams{lightning_params(make, spec, shared), ring, {}, {}};
      },
      [steps, rows = parts->rows](LightningReplayParams& params, int64_t call) {
        params.lightning.rows = rows.of_call(call);
        steps.set(params, call);
      },
      {lightning_decode_replay, explain_lightning_decode_replay,
       lightning_decode_replay_workspace_bytes});
}

}  // namespace linestate::cli
