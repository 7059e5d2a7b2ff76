/* Models, the state pool and the batch over the C interface: model_config.h, state_pool.h and
 * forward_batch.h say what the members mean. */
#ifndef LINESTATE_C_API_STATE_H_
#define LINESTATE_C_API_STATE_H_

#include "linestate/capi/c_api_types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_layer_kind { LS_LAYER_KDA = 0, LS_LAYER_LIGHTNING = 1 } ls_layer_kind;
typedef enum ls_lightning_variant { LS_SEG_LA = 0, LS_MINIMAX = 1 } ls_lightning_variant;

typedef struct ls_layer_spec {
  size_t struct_size;
  int32_t kind;     /* ls_layer_kind */
  int32_t layer_id; /* global decoder layer */
  int64_t num_heads;
  int64_t num_value_heads; /* 0 = num_heads */
  int64_t k_dim;
  int64_t v_dim;           /* 0 = k_dim */
  int64_t conv_width;      /* KDA; 0 = 4 */
  int32_t conv_activation; /* KDA: ls_activation; models use SiLU, zero is NONE */
  int32_t gate_form;       /* KDA: ls_kda_gate */
  int32_t beta_form;       /* KDA: ls_kda_beta */
  float lower_bound;       /* KDA */
  int32_t variant;         /* Lightning: ls_lightning_variant */
  int32_t slope_rule;      /* Lightning: ls_slope_rule */
  int64_t norm_groups;     /* Lightning; 0 = 1 */
  int64_t norm_group_channels;
  float norm_eps;   /* 0 = 1e-5 */
  int32_t reserved; /* zero */
} ls_layer_spec;

/* One rank's part of a model. Read-only once made: any number of threads may use it. */
typedef struct ls_model ls_model;

/* Errors: LS_NOT_FOUND listing the presets, LS_INVALID_ARGUMENT (the shard does not divide). */
LS_API ls_status ls_model_from_preset(const char* name, int32_t tp_rank, int32_t tp_size,
                                      ls_model** out);
/* `layers` are whole layers, layer_id rising; num_layers counts all decoder layers. */
LS_API ls_status ls_model_from_layers(const ls_layer_spec* layers, size_t num_linear_layers,
                                      int32_t num_layers, int32_t tp_rank, int32_t tp_size,
                                      ls_model** out);
/* A model of the first `count` linear layers of `model`; 0 = all. */
LS_API ls_status ls_model_limit_layers(const ls_model* model, int64_t count, ls_model** out);
LS_API void ls_model_destroy(ls_model* model);
/* All decoder layers, those of other attention too. */
LS_API ls_status ls_model_num_layers(const ls_model* model, int64_t* count);
LS_API ls_status ls_model_num_linear_layers(const ls_model* model, int64_t* count);
/* This rank's part of linear layer `index`. `layer` is sized by the caller. */
LS_API ls_status ls_model_layer(const ls_model* model, int64_t index, ls_layer_spec* layer);

typedef enum ls_state_layout { LS_LAYOUT_VK = 0, LS_LAYOUT_KV = 1 } ls_state_layout;

typedef struct ls_layer_state {
  size_t struct_size;
  int32_t layer_id;
  int32_t layout; /* ls_state_layout */
  int64_t heads;
  int64_t k_dim;
  int64_t v_dim;
  int64_t conv_channels; /* 0 = no window */
  int64_t conv_tail;
} ls_layer_state;

typedef struct ls_pool_spec {
  size_t struct_size;
  const ls_model* model; /* the layers of a model, or null and: */
  const ls_layer_state* layers;
  size_t num_layers;
  int32_t state_dtype;   /* LS_F32 | LS_BF16 | LS_F16 */
  int32_t window_dtype;  /* the io dtype, or LS_F32 */
  int64_t replay_length; /* R of the replay rings; 0 = 1: every token writes the state */
  int32_t replay_dtype;  /* LS_F32 | LS_F16 */
  int32_t reserved;      /* zero */
  /* R > 1: per layer null, or of Lightning layers its heads' slopes. Null = no Lightning layer. */
  const float* const* replay_slopes;
} ls_pool_spec;

LS_API ls_status ls_bytes_per_slot(const ls_pool_spec* spec, int64_t* bytes);
LS_API ls_status ls_max_slots(const ls_pool_spec* spec, int64_t budget_bytes, int64_t* slots);

/* The slot table has one owner thread; views may be used from any. */
typedef struct ls_pool ls_pool;

typedef struct ls_adopted_layer {
  size_t struct_size;
  ls_tensor recurrent;
  ls_tensor conv_window;
} ls_adopted_layer;

/* Polled, never waited for. Null `done` = already done. */
typedef bool (*ls_event_done)(void* handle);

LS_API ls_status ls_pool_create(const ls_pool_spec* spec, int64_t num_slots, int32_t device_type,
                                int32_t device_index, ls_pool** out);
/* The caller's memory, which must outlive the pool; one entry per layer of the spec. */
LS_API ls_status ls_pool_adopt(const ls_pool_spec* spec, const ls_adopted_layer* layers,
                               size_t num_layers, ls_pool** out);
LS_API void ls_pool_destroy(ls_pool* pool);
LS_API ls_status ls_pool_num_slots(const ls_pool* pool, int64_t* count);
LS_API ls_status ls_pool_num_layers(const ls_pool* pool, int64_t* count);
/* Views of layer `index` of the pool; without a window the second is not given (rank 0).
 * Errors: LS_FAILED_PRECONDITION while the memory is released. */
LS_API ls_status ls_pool_recurrent(const ls_pool* pool, int64_t index, ls_tensor* view);
LS_API ls_status ls_pool_conv_window(const ls_pool* pool, int64_t index, ls_tensor* view);
LS_API ls_status ls_pool_allocate(ls_pool* pool, int32_t* slot);
LS_API ls_status ls_pool_free(ls_pool* pool, int32_t slot);
LS_API ls_status ls_pool_retire(ls_pool* pool, int32_t slot, ls_event_done done, void* handle);
LS_API ls_status ls_pool_allocated(const ls_pool* pool, int32_t slot, int32_t* allocated);
LS_API ls_status ls_pool_free_slots(const ls_pool* pool, int64_t* count);
LS_API ls_status ls_pool_in_flight_slots(const ls_pool* pool, int64_t* count);
/* Empties the replay rings of slots [n] into the state; nothing to do without rings. */
LS_API ls_status ls_pool_fold(const ls_pool* pool, const ls_tensor* slots,
                              const ls_context* context);
LS_API ls_status ls_pool_mark_snapshot(ls_pool* pool, int32_t slot, int64_t position);
LS_API ls_status ls_pool_clear_snapshot(ls_pool* pool, int32_t slot);
LS_API ls_status ls_pool_snapshot_position(const ls_pool* pool, int32_t slot, int64_t* position);
LS_API ls_status ls_pool_release_memory(ls_pool* pool);
LS_API ls_status ls_pool_rebind_memory(ls_pool* pool);
LS_API ls_status ls_pool_memory_bound(const ls_pool* pool, int32_t* bound);

#ifdef __cplusplus
}
#endif

#endif /* LINESTATE_C_API_STATE_H_ */
