/* Where a pool's bytes lie, and what a slot pack says of itself: state/slot_transfer.h,
 * ops/replay_ring.h and state/slot_pack.h say what the members mean. */
#ifndef LINESTATE_C_API_TRANSFER_H_
#define LINESTATE_C_API_TRANSFER_H_

#include "linestate/capi/c_api_cache.h"
#include "linestate/capi/c_api_layer_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_transfer_part {
  LS_PART_RECURRENT = 0,
  LS_PART_CONV_Q = 1,
  LS_PART_CONV_K = 2,
  LS_PART_CONV_V = 3
} ls_transfer_part;

typedef enum ls_transfer_order { LS_LAST_FASTEST = 0, LS_FIRST_FASTEST = 1 } ls_transfer_order;

typedef struct ls_transfer_descriptor {
  size_t struct_size;
  int32_t layer_id; /* global decoder layer */
  int32_t part;     /* ls_transfer_part */
  int32_t dtype;    /* ls_dtype */
  int32_t layout;   /* ls_state_layout, of the recurrent part */
  int32_t order;    /* ls_transfer_order */
  int32_t reserved; /* zero */
  void* base;       /* of slot 0, head 0 */
  int64_t num_slots;
  int64_t slot_stride_bytes;
  int64_t bytes_per_slot;
  int64_t heads;
  int64_t head_stride_bytes;
  int64_t bytes_per_head;
  int64_t runs_per_head;
  int64_t run_bytes;
  int64_t run_stride_bytes;
} ls_transfer_descriptor;

/* One a part and layer, in order: up to `capacity` into `descriptors`, an array whose first element
 * has its size set; *count says how many there are. Call with (null, 0) to ask. */
LS_API ls_status ls_transfer_descriptors(const ls_pool* pool, ls_transfer_descriptor* descriptors,
                                         size_t capacity, size_t* count);
/* Ok when heads of the two are the same bytes. Errors: LS_INVALID_ARGUMENT naming the member. */
LS_API ls_status ls_check_transferable(const ls_transfer_descriptor* a,
                                       const ls_transfer_descriptor* b);

/* Pending records of layer `index` and the cursors that the layers share, as views. Errors:
 * LS_FAILED_PRECONDITION for a pool without rings, or without its memory. */
LS_API ls_status ls_pool_replay_ring(const ls_pool* pool, int64_t index, ls_replay_ring* ring);
LS_API ls_status ls_pool_replay_cursor(const ls_pool* pool, ls_tensor* cursor);

typedef struct ls_slot_pack_info {
  size_t struct_size;
  int64_t position;
  int64_t total_bytes;
  int32_t scheme; /* ls_pack_scheme */
  int32_t numerics_version;
  int32_t state_dtype;  /* of the pool it came from */
  int32_t window_dtype; /* the same */
} ls_slot_pack_info;

/* What a buffer holds, without a pool. Checks all of it, checksums too. Layers as above: up to
 * `capacity` into `layers`, *count says how many there are; `layers` and `count` may be null when
 * capacity is 0. Errors: LS_DATA_LOSS naming the field. */
LS_API ls_status ls_read_slot_pack(const void* buffer, size_t size, ls_slot_pack_info* info,
                                   ls_layer_state* layers, size_t capacity, size_t* count);

#ifdef __cplusplus
}
#endif

#endif /* LINESTATE_C_API_TRANSFER_H_ */
