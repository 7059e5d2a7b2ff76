/* The forward pass of one layer over a prepared batch: backend.h and verify_records.h say what the
 * members mean. */
#ifndef LINESTATE_C_API_BACKEND_H_
#define LINESTATE_C_API_BACKEND_H_

#include "linestate/capi/c_api_batch.h"
#include "linestate/capi/c_api_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Slots, offsets, starts and valid tokens of the whole batch, as views into the metadata. */
LS_API ls_status ls_metadata_rows(const ls_metadata* metadata, ls_rows* rows);

/* Records of verification for all layers; one batch in flight at a time. */
typedef struct ls_records ls_records;

LS_API ls_status ls_records_bytes_per_token(const ls_model* model, int32_t io_dtype,
                                            int64_t* bytes);
LS_API ls_status ls_records_create(const ls_model* model, int32_t io_dtype, int64_t max_tokens,
                                   int32_t device_type, int32_t device_index, ls_records** out);
LS_API void ls_records_destroy(ls_records* records);
/* Of pool layer `index`. Errors: LS_INVALID_ARGUMENT (no such layer, or of the other kind). */
LS_API ls_status ls_records_kda(const ls_records* records, int64_t index, ls_kda_record* record,
                                ls_tensor* record_x);

/* Kernel names per phase; null = not set here. */
typedef struct ls_kernel_options {
  size_t struct_size;
  const char* base;
  const char* conv;
  const char* prefill;
  const char* decode;
  const char* verify;
  const char* norm;
} ls_kernel_options;

typedef struct ls_kda_weights {
  size_t struct_size;
  ls_tensor conv_weight;
  ls_tensor conv_bias;
  ls_tensor A_log;
  ls_tensor dt_bias;
  ls_tensor norm_weight;
} ls_kda_weights;

typedef struct ls_kda_io {
  size_t struct_size;
  const ls_kda_record* record; /* verify rows only, else null */
  ls_tensor record_x;          /* verify rows only */
  ls_tensor qkv;
  ls_tensor gate;
  ls_tensor beta;
  ls_tensor z;
  ls_tensor out;
} ls_kda_io;

typedef struct ls_kda_commit_io {
  size_t struct_size;
  const ls_kda_record* record;
  ls_tensor record_x;
  ls_tensor accepted_node;
} ls_kda_commit_io;

LS_API ls_status ls_records_lightning(const ls_records* records, int64_t index,
                                      ls_lightning_record* record);

typedef struct ls_lightning_weights {
  size_t struct_size;
  ls_tensor slopes;
  ls_tensor norm_weight;
} ls_lightning_weights;

typedef struct ls_lightning_io {
  size_t struct_size;
  const ls_lightning_record* record; /* verify rows only, else null */
  ls_tensor q;
  ls_tensor k;
  ls_tensor v;
  ls_tensor gate;
  ls_tensor out;
} ls_lightning_io;

typedef struct ls_lightning_commit_io {
  size_t struct_size;
  const ls_lightning_record* record;
  ls_tensor accepted_node;
} ls_lightning_commit_io;

/* Read-only once made: any number of threads may use one. Each kind has the same functions.
 *   create           options: null = all auto. Layers of the other kind are ignored
 *   workspace_bytes  scratch of any forward() over up to max_tokens tokens of capacity
 *   forward          one layer, all rows of the batch; `pool_layer` counts the pool's layers
 *   commit           the accepted path of every verify row; metadata still holds that batch
 *   explain          the kernels that forward() would choose, as text */
#define LS_DECLARE_BACKEND(kind)                                                                  \
  typedef struct ls_##kind##_backend ls_##kind##_backend;                                         \
  LS_API ls_status ls_##kind##_backend_create(                                                    \
      const ls_model* model, const ls_kernel_options* options, ls_##kind##_backend** out);        \
  LS_API void ls_##kind##_backend_destroy(ls_##kind##_backend* backend);                          \
  LS_API ls_status ls_##kind##_backend_workspace_bytes(                                           \
      const ls_##kind##_backend* backend, int64_t max_tokens, const ls_pool* pool,                \
      const ls_context* context, const char* kernel, int64_t* bytes);                             \
  LS_API ls_status ls_##kind##_backend_forward(                                                   \
      const ls_##kind##_backend* backend, int64_t pool_layer, const ls_##kind##_weights* weights, \
      const ls_metadata* metadata, const ls_pool* pool, const ls_##kind##_io* io,                 \
      const ls_context* context, const char* kernel);                                             \
  LS_API ls_status ls_##kind##_backend_explain(                                                   \
      const ls_##kind##_backend* backend, int64_t pool_layer, const ls_##kind##_weights* weights, \
      const ls_metadata* metadata, const ls_pool* pool, const ls_##kind##_io* io,                 \
      const ls_context* context, const char* kernel, char* buffer, size_t size, size_t* needed)

LS_DECLARE_BACKEND(kda);
LS_DECLARE_BACKEND(lightning);

LS_API ls_status ls_kda_backend_commit(const ls_kda_backend* backend, int64_t pool_layer,
                                       const ls_metadata* metadata, const ls_pool* pool,
                                       const ls_kda_commit_io* io, const ls_context* context,
                                       const char* kernel);
LS_API ls_status ls_lightning_backend_commit(const ls_lightning_backend* backend,
                                             int64_t pool_layer,
                                             const ls_lightning_weights* weights,
                                             const ls_metadata* metadata, const ls_pool* pool,
                                             const ls_lightning_commit_io* io,
                                             const ls_context* context, const char* kernel);

#ifdef __cplusplus
}
#endif

#endif /* LINESTATE_C_API_BACKEND_H_ */
