/* A batch of rows, prepared once for all layers: forward_batch.h says what the members mean. */
#ifndef LINESTATE_C_API_BATCH_H_
#define LINESTATE_C_API_BATCH_H_

#include "linestate/capi/c_api_state.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_row_kind {
  LS_ROW_EXTEND = 0,
  LS_ROW_DECODE = 1,
  LS_ROW_VERIFY = 2,
  LS_ROW_PAD = 3
} ls_row_kind;

typedef struct ls_row {
  size_t struct_size;
  int32_t slot;        /* LS_PAD_SLOT = padding; 0 is a slot as any other */
  int32_t kind;        /* ls_row_kind */
  int64_t start;       /* tokens the slot already holds; 0 = fresh */
  int32_t tokens;      /* of this call */
  int32_t num_valid;   /* real tokens among them; -1 = all */
  int32_t force_flush; /* non-zero: decode with a replay ring writes the state at this token */
  int32_t reserved;    /* zero */
} ls_row;

typedef struct ls_snapshot_request {
  size_t struct_size;
  int64_t position;
  int32_t row;
  int32_t slot;
} ls_snapshot_request;

/* A slot pack (c_api_cache.h) that comes back into a slot before the batch. */
typedef struct ls_slot_restore {
  size_t struct_size;
  const void* pack;
  size_t pack_size;
  int32_t slot;
  int32_t allow_state_dtype_change;
  int32_t allow_other_numerics;
  int32_t reserved; /* zero */
} ls_slot_restore;

/* A fixed layout for batches that replay one captured graph: rows, tokens and snapshots of each
 * kind, whatever the batch holds. All zero = the batch's own. */
typedef struct ls_batch_shape {
  size_t struct_size;
  int64_t extend_rows;
  int64_t extend_tokens;
  int64_t extend_snapshots;
  int64_t decode_rows; /* and as many tokens */
  int64_t decode_snapshots;
  int64_t verify_rows;
  int64_t verify_tokens;
  int64_t verify_snapshots;
} ls_batch_shape;

/* Arrays may be null when their count is 0. Nothing is kept after ls_metadata_prepare. */
typedef struct ls_forward_batch {
  size_t struct_size;
  const ls_row* rows;
  size_t num_rows;        /* 0 = idle */
  int64_t token_capacity; /* 0 = the rows' tokens */
  const int32_t* clear;   /* slots to zero before the batch */
  size_t num_clears;
  const int32_t* copy_src; /* then slot copies: copy_dst[i] = copy_src[i] */
  const int32_t* copy_dst;
  size_t num_copies;
  const int32_t* parent; /* of the verify rows' tokens; none = chains */
  size_t num_parents;
  const ls_snapshot_request* snapshots;
  size_t num_snapshots;
  ls_tensor slot_table;            /* not given = ids are pool slots */
  const ls_slot_restore* restores; /* after the copies */
  size_t num_restores;
  const ls_batch_shape* shape; /* null = the batch's own */
} ls_forward_batch;

/* Room of a metadata. */
typedef struct ls_forward_capacity {
  size_t struct_size;
  int64_t rows; /* >= 1 */
  int64_t verify_tokens;
  int64_t snapshots;
  int64_t slot_work; /* CUDA: clears, and as many copies, of one batch; 0 = as many as rows */
} ls_forward_capacity;

/* One thread prepares; prepared, any number of threads may run layers over it. */
typedef struct ls_metadata ls_metadata;

typedef struct ls_batch_counts {
  size_t struct_size;
  int64_t num_rows;
  int64_t num_tokens;
  int64_t token_capacity;
  int64_t num_prefills;
  int64_t num_decodes;
  int64_t num_prefill_tokens;
} ls_batch_counts;

/* Rows of one kind. Tensors point into the metadata; those of no use are not given. */
typedef struct ls_segment {
  size_t struct_size;
  int64_t row_begin;
  int64_t row_end;
  int64_t token_begin;
  int64_t token_end;
  ls_tensor slot;
  ls_tensor query_start_loc;
  ls_tensor start;
  ls_tensor num_valid;
  ls_tensor parent;
  ls_tensor taken;
  ls_tensor snapshot_row; /* a plan of the segment's rows, see ls_snapshot_plan */
  ls_tensor snapshot_position;
  ls_tensor snapshot_slot;
  ls_tensor snapshot_source; /* slots of the rows in the plan */
  ls_tensor replay_pending;  /* decode rows of a pool with rings: what replay_step_begin gave */
  ls_tensor replay_flush;
} ls_segment;

LS_API ls_status ls_metadata_create(const ls_forward_capacity* capacity, int32_t device_type,
                                    int32_t device_index, ls_metadata** out);
LS_API void ls_metadata_destroy(ls_metadata* metadata);
LS_API ls_status ls_metadata_prepare(ls_metadata* metadata, const ls_forward_batch* batch,
                                     const ls_pool* pool, const ls_context* context);
LS_API ls_status ls_metadata_counts(const ls_metadata* metadata, ls_batch_counts* counts);
LS_API ls_status ls_metadata_snapshot_taken(const ls_metadata* metadata, size_t request,
                                            int32_t* taken);
/* CUDA: fetches what commits reported of snapshots in verify rows; waits for the context's stream.
 * Nothing to do on the CPU. */
LS_API ls_status ls_metadata_read_taken(ls_metadata* metadata, const ls_context* context);
LS_API ls_status ls_metadata_device(const ls_metadata* metadata, int32_t* device_type,
                                    int32_t* device_index);
/* Errors: LS_NOT_FOUND when the batch has no row of the kind. */
LS_API ls_status ls_metadata_segment(const ls_metadata* metadata, int32_t kind,
                                     ls_segment* segment);

#ifdef __cplusplus
}
#endif

#endif /* LINESTATE_C_API_BATCH_H_ */
