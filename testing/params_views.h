// Every tensor of every operator's Params, for whoever moves them to another device.
#pragma once

#include <vector>

#include "linestate/linestate.h"
#include "linestate/ops/causal_conv1d.h"
#include "linestate/ops/draft_tree.h"
#include "linestate/ops/kda.h"
#include "linestate/ops/kda_decode_step.h"
#include "linestate/ops/kda_verify.h"
#include "linestate/ops/lightning.h"
#include "linestate/ops/lightning_verify.h"
#include "linestate/ops/norm.h"
#include "linestate/ops/replay_ring.h"
#include "linestate/ops/state_ops.h"

namespace linestate::testing {

/// Params that own what their spans point at, so that views can be exchanged.
template <typename Params>
struct OwnedParams {
  explicit OwnedParams(const Params& params) : value(params) {}
  Params value;
};

template <>
struct OwnedParams<StateClearParams> {
  explicit OwnedParams(const StateClearParams& params)
      : planes(params.planes.begin(), params.planes.end()), value(params) {
    value.planes = planes;
  }
  std::vector<TensorView> planes;
  StateClearParams value;
};

template <>
struct OwnedParams<StateCopyParams> {
  explicit OwnedParams(const StateCopyParams& params)
      : src(params.src.begin(), params.src.end()),
        dst(params.dst.begin(), params.dst.end()),
        value(params) {
    value.src = src;
    value.dst = dst;
  }
  std::vector<ConstTensorView> src;
  std::vector<TensorView> dst;
  StateCopyParams value;
};

template <>
struct OwnedParams<ReplayFoldParams> {
  explicit OwnedParams(const ReplayFoldParams& params)
      : layers(params.layers.begin(), params.layers.end()), value(params) {
    value.layers = layers;
  }
  std::vector<ReplayFoldLayer> layers;
  ReplayFoldParams value;
};

template <typename Visit, typename... Views>
void visit_all(const Visit& visit, Views&... views) {
  (visit(views), ...);
}

template <typename Visit>
void visit_views(RowTensors& p, const Visit& visit) {
  visit_all(visit, p.slot, p.query_start_loc, p.start, p.num_valid);
}

template <typename Visit>
void visit_views(SnapshotPlan& p, const Visit& visit) {
  visit_all(visit, p.row, p.position, p.slot);
}

template <typename Visit>
void visit_views(CausalConv1dParams& p, const Visit& visit) {
  visit_views(p.rows, visit);
  visit_views(p.snapshots, visit);
  visit_all(visit, p.x, p.weight, p.bias, p.window, p.out);
}

template <typename Visit>
void visit_views(CausalConv1dVerifyParams& p, const Visit& visit) {
  visit_views(p.conv, visit);
  visit(p.parent);
}

template <typename Visit>
void visit_views(KdaParams& p, const Visit& visit) {
  visit_views(p.rows, visit);
  visit_views(p.snapshots, visit);
  visit_all(visit, p.q, p.k, p.v, p.gate, p.beta, p.state, p.out);
  if (p.gate_form == KdaGate::kActivated) return;  // the others are not looked at
  visit_all(visit, p.A_log, p.dt_bias);
}

template <typename Visit>
void visit_views(KdaDecodeStepParams& p, const Visit& visit) {
  visit_views(p.rows, visit);
  visit_views(p.snapshots, visit);
  visit_all(visit, p.x, p.conv_weight, p.conv_bias, p.window, p.gate, p.beta, p.state,
            p.norm_weight, p.z, p.out);
  if (p.gate_form == KdaGate::kActivated) return;  // the others are not looked at
  visit_all(visit, p.A_log, p.dt_bias);
}

template <typename Visit>
void visit_views(KdaRecord& p, const Visit& visit) {
  visit_all(visit, p.u, p.k, p.k_inverse_norm, p.alpha);
}

template <typename Visit>
void visit_views(KdaVerifyParams& p, const Visit& visit) {
  visit_views(p.kda, visit);
  visit_views(p.record, visit);
  visit(p.parent);
}

template <typename Visit>
void visit_views(KdaCommitParams& p, const Visit& visit) {
  visit_views(p.rows, visit);
  visit_views(p.snapshots, visit);
  visit_views(p.record, visit);
  visit_all(visit, p.parent, p.accepted_node, p.conv_x, p.state, p.window, p.taken);
}

template <typename Visit>
void visit_views(ReplayRing& p, const Visit& visit) {
  visit_all(visit, p.keys, p.values, p.gamma);
}

template <typename Visit>
void visit_views(KdaReplayParams& p, const Visit& visit) {
  visit_views(p.kda, visit);
  visit_views(p.ring, visit);
  visit_all(visit, p.pending, p.flush);
}

template <typename Visit>
void visit_views(LightningParams& p, const Visit& visit) {
  visit_views(p.rows, visit);
  visit_views(p.snapshots, visit);
  visit_all(visit, p.q, p.k, p.v, p.slopes, p.state, p.out);
}

template <typename Visit>
void visit_views(LightningVerifyParams& p, const Visit& visit) {
  visit_views(p.lightning, visit);
  visit_all(visit, p.parent, p.record.k, p.record.v);
}

template <typename Visit>
void visit_views(LightningCommitParams& p, const Visit& visit) {
  visit_views(p.rows, visit);
  visit_views(p.snapshots, visit);
  visit_all(visit, p.parent, p.accepted_node, p.record.k, p.record.v, p.slopes, p.state, p.taken);
}

template <typename Visit>
void visit_views(LightningReplayParams& p, const Visit& visit) {
  visit_views(p.lightning, visit);
  visit_views(p.ring, visit);
  visit_all(visit, p.pending, p.flush);
}

template <typename Visit>
void visit_views(GatedRmsNormParams& p, const Visit& visit) {
  visit_all(visit, p.x, p.z, p.weight, p.out);
}

template <typename Visit>
void visit_views(GroupRmsNormParams& p, const Visit& visit) {
  visit_all(visit, p.x, p.gate, p.weight, p.sum_sq, p.out);
}

template <typename Visit>
void visit_views(RmsSumSqParams& p, const Visit& visit) {
  visit_all(visit, p.x, p.sum_sq);
}

template <typename Visit>
void visit_views(TreeFromLinksParams& p, const Visit& visit) {
  visit_all(visit, p.first_child, p.next_sibling, p.parent);
}

template <typename Visit>
void visit_views(ReplayStepParams& p, const Visit& visit) {
  visit_views(p.rows, visit);
  visit_all(visit, p.force_flush, p.cursor, p.pending, p.flush);
}

/// Every tensor of the Params, as ConstTensorView& or TensorView&.
template <typename Params, typename Visit>
void for_each_view(OwnedParams<Params>& params, const Visit& visit) {
  visit_views(params.value, visit);
}

template <typename Visit>
void for_each_view(OwnedParams<StateClearParams>& params, const Visit& visit) {
  for (TensorView& plane : params.planes) visit(plane);
  visit(params.value.slots);
}

template <typename Visit>
void for_each_view(OwnedParams<StateCopyParams>& params, const Visit& visit) {
  for (ConstTensorView& plane : params.src) visit(plane);
  for (TensorView& plane : params.dst) visit(plane);
  visit_all(visit, params.value.src_slots, params.value.dst_slots);
}

template <typename Visit>
void for_each_view(OwnedParams<ReplayFoldParams>& params, const Visit& visit) {
  for (ReplayFoldLayer& layer : params.layers) {
    visit_views(layer.ring, visit);
    visit_all(visit, layer.state, layer.slopes);
  }
  visit_all(visit, params.value.slots, params.value.cursor);
}

}  // namespace linestate::testing
