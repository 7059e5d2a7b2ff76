#include "capi/outgoing.h"

namespace linestate::capi {
namespace {

template <typename T>
T sized() {
  T out{};
  out.struct_size = sizeof(out);
  return out;
}

const ls_snapshot_plan* plan_or_null(const SnapshotPlan& plan, const ls_snapshot_plan* c) {
  return plan.defined() ? c : nullptr;
}

template <typename Views>
std::vector<ls_tensor> all_to_c(const Views& views) {
  std::vector<ls_tensor> out;
  for (const auto& view : views) out.push_back(to_c(view));
  return out;
}

// What the attention of both families shares.
template <typename Params, typename Attention>
void write_attention(const Params& p, Attention& c) {
  c.q = to_c(p.q);
  c.k = to_c(p.k);
  c.v = to_c(p.v);
  c.state = to_c(p.state);
  c.out = to_c(p.out);
  c.layer = p.layer;
}

// What their commits share.
template <typename Params, typename Commit>
void write_commit(const Params& p, Commit& c) {
  c.parent = to_c(p.parent);
  c.accepted_node = to_c(p.accepted_node);
  c.state = to_c(p.state);
  c.taken = to_c(p.taken);
  c.layer = p.layer;
}

}  // namespace

ls_context to_c(const ExecContext& context) {
  auto out = sized<ls_context>();
  out.device_type = static_cast<int32_t>(context.device.type);
  out.device_index = context.device.index;
  out.num_threads = context.num_threads;
  out.check_finite = context.check_finite ? 1 : 0;
  out.strict = context.strict ? 1 : 0;
  out.slots_checked = context.slots_checked ? 1 : 0;
  out.stream = context.stream;
  out.workspace = context.workspace.data;
  out.workspace_bytes = context.workspace.bytes;
  out.status = reinterpret_cast<ls_device_status*>(context.status);
  return out;
}

ls_rows to_c(const RowTensors& rows) {
  return {sizeof(ls_rows), to_c(rows.slot), to_c(rows.query_start_loc), to_c(rows.start),
          to_c(rows.num_valid)};
}

ls_snapshot_plan to_c(const SnapshotPlan& plan) {
  return {sizeof(ls_snapshot_plan), to_c(plan.row), to_c(plan.position), to_c(plan.slot)};
}

ls_kda_record to_c(const KdaRecord& record) {
  return {sizeof(ls_kda_record), to_c(record.u), to_c(record.k), to_c(record.k_inverse_norm),
          to_c(record.alpha)};
}

ls_lightning_record to_c(const LightningRecord& record) {
  return {sizeof(ls_lightning_record), to_c(record.k), to_c(record.v)};
}

ls_replay_ring to_c(const ReplayRing& ring) {
  return {sizeof(ls_replay_ring), to_c(ring.keys), to_c(ring.values), to_c(ring.gamma)};
}

Outgoing<CausalConv1dParams>::Outgoing(const CausalConv1dParams& p)
    : rows(to_c(p.rows)), plan(to_c(p.snapshots)), c(sized<ls_causal_conv1d_params>()) {
  c.rows = &rows;
  c.snapshots = plan_or_null(p.snapshots, &plan);
  c.x = to_c(p.x);
  c.weight = to_c(p.weight);
  c.bias = to_c(p.bias);
  c.window = to_c(p.window);
  c.out = to_c(p.out);
  c.activation = static_cast<int32_t>(p.activation);
  c.layer = p.layer;
}

Outgoing<CausalConv1dVerifyParams>::Outgoing(const CausalConv1dVerifyParams& p)
    : conv(p.conv), c{sizeof(c), &conv.c, to_c(p.parent)} {}

Outgoing<KdaParams>::Outgoing(const KdaParams& p)
    : rows(to_c(p.rows)), plan(to_c(p.snapshots)), c(sized<ls_kda_params>()) {
  c.rows = &rows;
  c.snapshots = plan_or_null(p.snapshots, &plan);
  write_attention(p, c);
  c.gate = to_c(p.gate);
  c.beta = to_c(p.beta);
  c.A_log = to_c(p.A_log);
  c.dt_bias = to_c(p.dt_bias);
  c.gate_form = static_cast<int32_t>(p.gate_form);
  c.beta_form = static_cast<int32_t>(p.beta_form);
  c.lower_bound = p.lower_bound;
  c.scale = p.scale;
  c.qk_normalized = p.qk_normalized ? 1 : 0;
}

Outgoing<KdaVerifyParams>::Outgoing(const KdaVerifyParams& p)
    : kda(p.kda), record(to_c(p.record)), c{sizeof(c), &kda.c, &record, to_c(p.parent)} {}

Outgoing<KdaCommitParams>::Outgoing(const KdaCommitParams& p)
    : rows(to_c(p.rows)),
      plan(to_c(p.snapshots)),
      record(to_c(p.record)),
      c(sized<ls_kda_commit_params>()) {
  c.rows = &rows;
  c.record = &record;
  c.snapshots = plan_or_null(p.snapshots, &plan);
  write_commit(p, c);
  c.conv_x = to_c(p.conv_x);
  c.window = to_c(p.window);
}

Outgoing<KdaReplayParams>::Outgoing(const KdaReplayParams& p)
    : kda(p.kda), ring(to_c(p.ring)), c{sizeof(c), &kda.c, &ring, to_c(p.pending), to_c(p.flush)} {}

Outgoing<LightningParams>::Outgoing(const LightningParams& p)
    : rows(to_c(p.rows)), plan(to_c(p.snapshots)), c(sized<ls_lightning_params>()) {
  c.rows = &rows;
  c.snapshots = plan_or_null(p.snapshots, &plan);
  write_attention(p, c);
  c.slopes = to_c(p.slopes);
  c.scale = p.scale;
}

Outgoing<LightningVerifyParams>::Outgoing(const LightningVerifyParams& p)
    : lightning(p.lightning),
      record(to_c(p.record)),
      c{sizeof(c), &lightning.c, &record, to_c(p.parent)} {}

Outgoing<LightningCommitParams>::Outgoing(const LightningCommitParams& p)
    : rows(to_c(p.rows)),
      plan(to_c(p.snapshots)),
      record(to_c(p.record)),
      c(sized<ls_lightning_commit_params>()) {
  c.rows = &rows;
  c.record = &record;
  c.snapshots = plan_or_null(p.snapshots, &plan);
  write_commit(p, c);
  c.slopes = to_c(p.slopes);
}

Outgoing<LightningReplayParams>::Outgoing(const LightningReplayParams& p)
    : lightning(p.lightning),
      ring(to_c(p.ring)),
      c{sizeof(c), &lightning.c, &ring, to_c(p.pending), to_c(p.flush)} {}

Outgoing<GatedRmsNormParams>::Outgoing(const GatedRmsNormParams& p)
    : c{sizeof(c), to_c(p.x), to_c(p.z), to_c(p.weight), to_c(p.out), p.eps, 0} {}

Outgoing<GroupRmsNormParams>::Outgoing(const GroupRmsNormParams& p)
    : c{sizeof(c),   to_c(p.x),    to_c(p.gate),     to_c(p.weight), to_c(p.sum_sq),
        to_c(p.out), p.num_groups, p.group_channels, p.eps,          0} {}

Outgoing<RmsSumSqParams>::Outgoing(const RmsSumSqParams& p)
    : c{sizeof(c), to_c(p.x), to_c(p.sum_sq)} {}

Outgoing<TreeFromLinksParams>::Outgoing(const TreeFromLinksParams& p)
    : c{sizeof(c), to_c(p.first_child), to_c(p.next_sibling), to_c(p.parent)} {}

Outgoing<StateClearParams>::Outgoing(const StateClearParams& p)
    : planes(all_to_c(p.planes)), c{sizeof(c), planes.data(), planes.size(), to_c(p.slots)} {}

Outgoing<StateCopyParams>::Outgoing(const StateCopyParams& p)
    : src(all_to_c(p.src)), dst(all_to_c(p.dst)), c{sizeof(c),        src.data(), src.size(),
                                                    dst.data(),       dst.size(), to_c(p.src_slots),
                                                    to_c(p.dst_slots)} {}

Outgoing<ReplayStepParams>::Outgoing(const ReplayStepParams& p)
    : rows(to_c(p.rows)), c{sizeof(c),       &rows,         to_c(p.force_flush), to_c(p.cursor),
                            to_c(p.pending), to_c(p.flush), p.ring_length} {}

Outgoing<ReplayFoldParams>::Outgoing(const ReplayFoldParams& p)
    : c(sized<ls_replay_fold_params>()) {
  rings.reserve(p.layers.size());  // the layers point into it
  for (const ReplayFoldLayer& layer : p.layers) {
    rings.push_back(to_c(layer.ring));
    layers.push_back({sizeof(ls_replay_fold_layer), &rings.back(), to_c(layer.state),
                      to_c(layer.slopes), layer.layer, 0});
  }
  c.layers = layers.data();
  c.num_layers = layers.size();
  c.slots = to_c(p.slots);
  c.cursor = to_c(p.cursor);
}

}  // namespace linestate::capi
