/* The operators around the attention: convolution, norms, draft trees, moving slots. */
#ifndef LINESTATE_C_API_LAYER_OPS_H_
#define LINESTATE_C_API_LAYER_OPS_H_

#include "linestate/capi/c_api_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_activation { LS_ACTIVATION_NONE = 0, LS_ACTIVATION_SILU = 1 } ls_activation;

/* ops/causal_conv1d.h */
typedef struct ls_causal_conv1d_params {
  size_t struct_size;
  const ls_rows* rows;
  const ls_snapshot_plan* snapshots; /* null = none */
  ls_tensor x;
  ls_tensor weight;
  ls_tensor bias;
  ls_tensor window;
  ls_tensor out;
  int32_t activation; /* ls_activation; models use SiLU, zero is NONE */
  int32_t layer;
} ls_causal_conv1d_params;

LS_DECLARE_OP(causal_conv1d_prefill, ls_causal_conv1d_params);
LS_DECLARE_OP(causal_conv1d_update, ls_causal_conv1d_params);

/* ops/kda_verify.h */
typedef struct ls_causal_conv1d_verify_params {
  size_t struct_size;
  const ls_causal_conv1d_params* conv;
  ls_tensor parent; /* not given = chains */
} ls_causal_conv1d_verify_params;

LS_DECLARE_OP(causal_conv1d_verify, ls_causal_conv1d_verify_params);

/* ops/norm.h. eps 0 = 1e-5. */
typedef struct ls_gated_rms_norm_params {
  size_t struct_size;
  ls_tensor x;
  ls_tensor z;
  ls_tensor weight;
  ls_tensor out;
  float eps;
  int32_t reserved; /* zero */
} ls_gated_rms_norm_params;

typedef struct ls_group_rms_norm_params {
  size_t struct_size;
  ls_tensor x;
  ls_tensor gate;
  ls_tensor weight;
  ls_tensor sum_sq;
  ls_tensor out;
  int64_t num_groups; /* 0 = 1 */
  int64_t group_channels;
  float eps;
  int32_t reserved; /* zero */
} ls_group_rms_norm_params;

typedef struct ls_rms_sum_sq_params {
  size_t struct_size;
  ls_tensor x;
  ls_tensor sum_sq;
} ls_rms_sum_sq_params;

LS_DECLARE_OP(gated_rms_norm, ls_gated_rms_norm_params);
LS_DECLARE_OP(group_rms_norm, ls_group_rms_norm_params);
LS_DECLARE_OP(rms_sum_sq, ls_rms_sum_sq_params);

/* ops/draft_tree.h */
typedef struct ls_tree_from_links_params {
  size_t struct_size;
  ls_tensor first_child;
  ls_tensor next_sibling;
  ls_tensor parent;
} ls_tree_from_links_params;

LS_DECLARE_OP(tree_from_links, ls_tree_from_links_params);

/* ops/state_ops.h. Planes are pooled tensors [P, ...]. */
typedef struct ls_state_clear_params {
  size_t struct_size;
  const ls_tensor* planes;
  size_t num_planes;
  ls_tensor slots;
} ls_state_clear_params;

typedef struct ls_state_copy_params {
  size_t struct_size;
  const ls_tensor* src;
  size_t num_src;
  const ls_tensor* dst;
  size_t num_dst;
  ls_tensor src_slots;
  ls_tensor dst_slots;
} ls_state_copy_params;

LS_DECLARE_OP(state_clear, ls_state_clear_params);
LS_DECLARE_OP(state_copy, ls_state_copy_params);

/* ops/replay_ring.h */
typedef struct ls_replay_ring {
  size_t struct_size;
  ls_tensor keys;
  ls_tensor values;
  ls_tensor gamma;
} ls_replay_ring;

typedef struct ls_replay_step_params {
  size_t struct_size;
  const ls_rows* rows;
  ls_tensor force_flush;
  ls_tensor cursor;
  ls_tensor pending;
  ls_tensor flush;
  int64_t ring_length; /* R; 0 = 1 */
} ls_replay_step_params;

typedef struct ls_kda_replay_params {
  size_t struct_size;
  const ls_kda_params* kda;
  const ls_replay_ring* ring;
  ls_tensor pending;
  ls_tensor flush;
} ls_kda_replay_params;

typedef struct ls_lightning_replay_params {
  size_t struct_size;
  const ls_lightning_params* lightning;
  const ls_replay_ring* ring;
  ls_tensor pending;
  ls_tensor flush;
} ls_lightning_replay_params;

typedef struct ls_replay_fold_layer {
  size_t struct_size;
  const ls_replay_ring* ring;
  ls_tensor state;
  ls_tensor slopes; /* given for a Lightning layer */
  int32_t layer;
  int32_t reserved; /* zero */
} ls_replay_fold_layer;

typedef struct ls_replay_fold_params {
  size_t struct_size;
  const ls_replay_fold_layer* layers;
  size_t num_layers;
  ls_tensor slots;
  ls_tensor cursor;
} ls_replay_fold_params;

LS_DECLARE_OP(replay_step_begin, ls_replay_step_params);
LS_DECLARE_OP(kda_decode_replay, ls_kda_replay_params);
LS_DECLARE_OP(lightning_decode_replay, ls_lightning_replay_params);
LS_DECLARE_OP(replay_fold, ls_replay_fold_params);

#ifdef __cplusplus
}
#endif

#endif /* LINESTATE_C_API_LAYER_OPS_H_ */
