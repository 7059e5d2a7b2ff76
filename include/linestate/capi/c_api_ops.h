/* The attention operators over the C interface. What each one computes, its shapes, REQUIRES and
 * errors are in the C++ header of the same struct (ops/kda.h for ls_kda_params, ...), members have
 * the names used there. Operators are re-entrant: calls that share no workspace and no slot may run
 * at once. */
#ifndef LINESTATE_C_API_OPS_H_
#define LINESTATE_C_API_OPS_H_

#include "linestate/capi/c_api_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each operator is three functions. `kernel` names a row of its table; null = "auto".
 *   ls_<op>                  runs it
 *   ls_<op>_workspace_bytes  scratch that the run needs
 *   ls_<op>_explain          which kernel would run and why not the others, as text */
#define LS_DECLARE_OP(op, params_type)                                                             \
  LS_API ls_status ls_##op(const params_type* params, const ls_context* context,                   \
                           const char* kernel);                                                    \
  LS_API ls_status ls_##op##_workspace_bytes(const params_type* params, const ls_context* context, \
                                             const char* kernel, int64_t* bytes);                  \
  LS_API ls_status ls_##op##_explain(const params_type* params, const ls_context* context,         \
                                     const char* kernel, char* buffer, size_t size,                \
                                     size_t* needed)

/* rows.h: RowTensors */
typedef struct ls_rows {
  size_t struct_size;
  ls_tensor slot;
  ls_tensor query_start_loc;
  ls_tensor start;
  ls_tensor num_valid;
} ls_rows;

/* rows.h: SnapshotPlan */
typedef struct ls_snapshot_plan {
  size_t struct_size;
  ls_tensor row;
  ls_tensor position;
  ls_tensor slot;
} ls_snapshot_plan;

typedef enum ls_kda_gate {
  LS_GATE_SOFTPLUS = 0,
  LS_GATE_BOUNDED = 1,
  LS_GATE_ACTIVATED = 2
} ls_kda_gate;

typedef enum ls_kda_beta { LS_BETA_LOGITS = 0, LS_BETA_PROBABILITY = 1 } ls_kda_beta;

/* ops/kda.h */
typedef struct ls_kda_params {
  size_t struct_size;
  const ls_rows* rows;
  const ls_snapshot_plan* snapshots; /* null = none */
  ls_tensor q;
  ls_tensor k;
  ls_tensor v;
  ls_tensor gate;
  ls_tensor beta;
  ls_tensor A_log;
  ls_tensor dt_bias;
  ls_tensor state;
  ls_tensor out;
  int32_t gate_form; /* ls_kda_gate */
  int32_t beta_form; /* ls_kda_beta */
  float lower_bound;
  float scale;
  int32_t qk_normalized; /* non-zero: q and k have unit length */
  int32_t layer;
} ls_kda_params;

LS_DECLARE_OP(kda_prefill, ls_kda_params);
LS_DECLARE_OP(kda_decode, ls_kda_params);

/* q, k and v of packed [T, 2*H*K + HV*V], as views. */
LS_API ls_status ls_split_packed_qkv(const ls_tensor* packed, int64_t num_heads,
                                     int64_t num_value_heads, int64_t k_dim, int64_t v_dim,
                                     ls_tensor* q, ls_tensor* k, ls_tensor* v);

/* ops/kda_verify.h */
typedef struct ls_kda_record {
  size_t struct_size;
  ls_tensor u;
  ls_tensor k;
  ls_tensor k_inverse_norm;
  ls_tensor alpha;
} ls_kda_record;

typedef struct ls_kda_verify_params {
  size_t struct_size;
  const ls_kda_params* kda;
  const ls_kda_record* record;
  ls_tensor parent; /* not given = chains */
} ls_kda_verify_params;

typedef struct ls_kda_commit_params {
  size_t struct_size;
  const ls_rows* rows;
  const ls_kda_record* record;
  const ls_snapshot_plan* snapshots; /* null = none */
  ls_tensor parent;
  ls_tensor accepted_node;
  ls_tensor conv_x;
  ls_tensor state;
  ls_tensor window;
  ls_tensor taken;
  int32_t layer;
  int32_t reserved; /* zero */
} ls_kda_commit_params;

LS_DECLARE_OP(kda_verify, ls_kda_verify_params);
LS_DECLARE_OP(kda_commit, ls_kda_commit_params);

/* ops/lightning.h */
typedef struct ls_lightning_params {
  size_t struct_size;
  const ls_rows* rows;
  const ls_snapshot_plan* snapshots; /* null = none */
  ls_tensor q;
  ls_tensor k;
  ls_tensor v;
  ls_tensor slopes;
  ls_tensor state;
  ls_tensor out;
  float scale; /* 0 = 1; D^-0.5 for seg_la */
  int32_t layer;
} ls_lightning_params;

LS_DECLARE_OP(lightning_prefill, ls_lightning_params);
LS_DECLARE_OP(lightning_decode, ls_lightning_params);

/* ops/lightning_verify.h */
typedef struct ls_lightning_record {
  size_t struct_size;
  ls_tensor k;
  ls_tensor v;
} ls_lightning_record;

typedef struct ls_lightning_verify_params {
  size_t struct_size;
  const ls_lightning_params* lightning;
  const ls_lightning_record* record;
  ls_tensor parent; /* not given = chains */
} ls_lightning_verify_params;

typedef struct ls_lightning_commit_params {
  size_t struct_size;
  const ls_rows* rows;
  const ls_lightning_record* record;
  const ls_snapshot_plan* snapshots; /* null = none */
  ls_tensor parent;
  ls_tensor accepted_node;
  ls_tensor slopes;
  ls_tensor state;
  ls_tensor taken;
  int32_t layer;
  int32_t reserved; /* zero */
} ls_lightning_commit_params;

LS_DECLARE_OP(lightning_verify, ls_lightning_verify_params);
LS_DECLARE_OP(lightning_commit, ls_lightning_commit_params);

typedef enum ls_slope_rule {
  LS_SLOPE_LAYER_OVER_LAST = 0,
  LS_SLOPE_LAYER_OVER_LAST_PLUS_EPS = 1,
  LS_SLOPE_PREVIOUS_LAYER = 2
} ls_slope_rule;

/* Slopes of the shard's heads into slopes[0, num_heads / tp_size). Errors: LS_INVALID_ARGUMENT,
 * also when `capacity`, the length of `slopes`, is too small. */
LS_API ls_status ls_lightning_slopes(int64_t num_heads, int64_t layer, int64_t num_layers,
                                     int32_t tp_rank, int32_t tp_size, int32_t slope_rule,
                                     float* slopes, int64_t capacity);

#ifdef __cplusplus
}
#endif

#endif /* LINESTATE_C_API_OPS_H_ */
