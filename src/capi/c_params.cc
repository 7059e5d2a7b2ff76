#include "capi/c_params.h"

namespace linestate::capi {
namespace {

void read_ring(Reader& reader, const ls_replay_ring* in, ReplayRing* out) {
  const ls_replay_ring ring = reader.sized("ring", in);
  reader.tensor("ring.keys", ring.keys, &out->keys);
  reader.tensor("ring.values", ring.values, &out->values);
  reader.tensor("ring.gamma", ring.gamma, &out->gamma);
}

// What the attention of both families shares.
template <typename Attention, typename Params>
void read_attention(Reader& reader, const Attention& p, Params* out) {
  read(reader, p.rows, &out->rows);
  read(reader, p.snapshots, &out->snapshots);
  reader.tensor("q", p.q, &out->q);
  reader.tensor("k", p.k, &out->k);
  reader.tensor("v", p.v, &out->v);
  reader.tensor("state", p.state, &out->state);
  reader.tensor("out", p.out, &out->out);
  out->layer = p.layer;
}

// What their commits share.
template <typename Commit, typename Params>
void read_commit(Reader& reader, const Commit& p, Params* out) {
  read(reader, p.rows, &out->rows);
  read(reader, p.record, &out->record);
  read(reader, p.snapshots, &out->snapshots);
  reader.tensor("parent", p.parent, &out->parent);
  reader.tensor("accepted_node", p.accepted_node, &out->accepted_node);
  reader.tensor("state", p.state, &out->state);
  reader.tensor("taken", p.taken, &out->taken);
  out->layer = p.layer;
}

template <typename Replay, typename Params>
void read_step(Reader& reader, const Replay& p, Params* out) {
  read_ring(reader, p.ring, &out->ring);
  reader.tensor("pending", p.pending, &out->pending);
  reader.tensor("flush", p.flush, &out->flush);
}

}  // namespace

void read(Reader& reader, const ls_causal_conv1d_params* in, CausalConv1dParams* out) {
  const ls_causal_conv1d_params p = reader.sized("params", in);
  if (!reader.status().ok()) return;
  read(reader, p.rows, &out->rows);
  read(reader, p.snapshots, &out->snapshots);
  reader.tensor("x", p.x, &out->x);
  reader.tensor("weight", p.weight, &out->weight);
  reader.tensor("bias", p.bias, &out->bias);
  reader.tensor("window", p.window, &out->window);
  reader.tensor("out", p.out, &out->out);
  reader.choice("activation", p.activation, Activation::kSilu, &out->activation);
  out->layer = p.layer;
}

void read(Reader& reader, const ls_causal_conv1d_verify_params* in, CausalConv1dVerifyParams* out) {
  const ls_causal_conv1d_verify_params p = reader.sized("params", in);
  if (!reader.status().ok()) return;
  read(reader, p.conv, &out->conv);
  reader.tensor("parent", p.parent, &out->parent);
}

void read(Reader& reader, const ls_kda_params* in, KdaParams* out) {
  const ls_kda_params p = reader.sized("params", in);
  if (!reader.status().ok()) return;
  read_attention(reader, p, out);
  reader.tensor("gate", p.gate, &out->gate);
  reader.tensor("beta", p.beta, &out->beta);
  reader.tensor("A_log", p.A_log, &out->A_log);
  reader.tensor("dt_bias", p.dt_bias, &out->dt_bias);
  reader.choice("gate_form", p.gate_form, KdaGate::kActivated, &out->gate_form);
  reader.choice("beta_form", p.beta_form, KdaBeta::kProbability, &out->beta_form);
  out->lower_bound = p.lower_bound;
  out->scale = p.scale;
  out->qk_normalized = p.qk_normalized != 0;
}

void read(Reader& reader, const ls_kda_verify_params* in, KdaVerifyParams* out) {
  const ls_kda_verify_params p = reader.sized("params", in);
  if (!reader.status().ok()) return;
  read(reader, p.kda, &out->kda);
  read(reader, p.record, &out->record);
  reader.tensor("parent", p.parent, &out->parent);
}

void read(Reader& reader, const ls_kda_commit_params* in, KdaCommitParams* out) {
  const ls_kda_commit_params p = reader.sized("params", in);
  if (!reader.status().ok()) return;
  read_commit(reader, p, out);
  reader.tensor("conv_x", p.conv_x, &out->conv_x);
  reader.tensor("window", p.window, &out->window);
}

void read(Reader& reader, const ls_kda_replay_params* in, KdaReplayParams* out) {
  const ls_kda_replay_params p = reader.sized("params", in);
  if (!reader.status().ok()) return;
  read(reader, p.kda, &out->kda);
  read_step(reader, p, out);
}

void read(Reader& reader, const ls_lightning_params* in, LightningParams* out) {
  const ls_lightning_params p = reader.sized("params", in);
  if (!reader.status().ok()) return;
  read_attention(reader, p, out);
  reader.tensor("slopes", p.slopes, &out->slopes);
  out->scale = or_default(p.scale, 1.0f);
}

void read(Reader& reader, const ls_lightning_verify_params* in, LightningVerifyParams* out) {
  const ls_lightning_verify_params p = reader.sized("params", in);
  if (!reader.status().ok()) return;
  read(reader, p.lightning, &out->lightning);
  read(reader, p.record, &out->record);
  reader.tensor("parent", p.parent, &out->parent);
}

void read(Reader& reader, const ls_lightning_commit_params* in, LightningCommitParams* out) {
  const ls_lightning_commit_params p = reader.sized("params", in);
  if (!reader.status().ok()) return;
  read_commit(reader, p, out);
  reader.tensor("slopes", p.slopes, &out->slopes);
}

void read(Reader& reader, const ls_lightning_replay_params* in, LightningReplayParams* out) {
  const ls_lightning_replay_params p = reader.sized("params", in);
  if (!reader.status().ok()) return;
  read(reader, p.lightning, &out->lightning);
  read_step(reader, p, out);
}

void read(Reader& reader, const ls_gated_rms_norm_params* in, GatedRmsNormParams* out) {
  const ls_gated_rms_norm_params p = reader.sized("params", in);
  reader.tensor("x", p.x, &out->x);
  reader.tensor("z", p.z, &out->z);
  reader.tensor("weight", p.weight, &out->weight);
  reader.tensor("out", p.out, &out->out);
  out->eps = or_default(p.eps, out->eps);
}

void read(Reader& reader, const ls_group_rms_norm_params* in, GroupRmsNormParams* out) {
  const ls_group_rms_norm_params p = reader.sized("params", in);
  reader.tensor("x", p.x, &out->x);
  reader.tensor("gate", p.gate, &out->gate);
  reader.tensor("weight", p.weight, &out->weight);
  reader.tensor("sum_sq", p.sum_sq, &out->sum_sq);
  reader.tensor("out", p.out, &out->out);
  out->num_groups = or_default(p.num_groups, out->num_groups);
  out->group_channels = p.group_channels;
  out->eps = or_default(p.eps, out->eps);
}

void read(Reader& reader, const ls_rms_sum_sq_params* in, RmsSumSqParams* out) {
  const ls_rms_sum_sq_params p = reader.sized("params", in);
  reader.tensor("x", p.x, &out->x);
  reader.tensor("sum_sq", p.sum_sq, &out->sum_sq);
}

void read(Reader& reader, const ls_tree_from_links_params* in, TreeFromLinksParams* out) {
  const ls_tree_from_links_params p = reader.sized("params", in);
  reader.tensor("first_child", p.first_child, &out->first_child);
  reader.tensor("next_sibling", p.next_sibling, &out->next_sibling);
  reader.tensor("parent", p.parent, &out->parent);
}

void read(Reader& reader, const ls_state_clear_params* in, StateClearParams* out) {
  const ls_state_clear_params p = reader.sized("params", in);
  reader.tensors("planes", p.planes, p.num_planes, &reader.planes);
  reader.tensor("slots", p.slots, &out->slots);
  out->planes = reader.planes;
}

void read(Reader& reader, const ls_state_copy_params* in, StateCopyParams* out) {
  const ls_state_copy_params p = reader.sized("params", in);
  reader.tensors("src", p.src, p.num_src, &reader.sources);
  reader.tensors("dst", p.dst, p.num_dst, &reader.planes);
  reader.tensor("src_slots", p.src_slots, &out->src_slots);
  reader.tensor("dst_slots", p.dst_slots, &out->dst_slots);
  out->src = reader.sources;
  out->dst = reader.planes;
}

void read(Reader& reader, const ls_replay_step_params* in, ReplayStepParams* out) {
  const ls_replay_step_params p = reader.sized("params", in);
  if (!reader.status().ok()) return;
  read(reader, p.rows, &out->rows);
  reader.tensor("force_flush", p.force_flush, &out->force_flush);
  reader.tensor("cursor", p.cursor, &out->cursor);
  reader.tensor("pending", p.pending, &out->pending);
  reader.tensor("flush", p.flush, &out->flush);
  out->ring_length = or_default(p.ring_length, 1);
}

void read(Reader& reader, const ls_replay_fold_params* in, ReplayFoldParams* out) {
  const ls_replay_fold_params p = reader.sized("params", in);
  for (size_t i = 0; i < p.num_layers && reader.status().ok(); ++i) {
    ls_replay_fold_layer layer{};
    reader.require_ok(load_element("layers", p.layers, i, &layer));
    if (!reader.status().ok()) return;
    ReplayFoldLayer& to = reader.layers.emplace_back();
    read_ring(reader, layer.ring, &to.ring);
    reader.tensor("layers.state", layer.state, &to.state);
    reader.tensor("layers.slopes", layer.slopes, &to.slopes);
    to.layer = layer.layer;
  }
  reader.tensor("slots", p.slots, &out->slots);
  reader.tensor("cursor", p.cursor, &out->cursor);
  out->layers = reader.layers;
}

}  // namespace linestate::capi
