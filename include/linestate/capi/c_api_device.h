/* Memory, streams, events and graphs of a device for callers without CUDA headers: device_memory.h
 * and device_staging.h say what the functions do. All of it works on LS_CPU too, but for graphs.
 * A stream is a cudaStream_t, null the default one. The caller's own CUDA objects may be mixed in:
 * handles are plain cudaStream_t and cudaEvent_t. */
#ifndef LINESTATE_C_API_DEVICE_H_
#define LINESTATE_C_API_DEVICE_H_

#include "linestate/capi/c_api_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes on a device, aligned to 256. Destroying waits for nothing. */
typedef struct ls_memory ls_memory;

/* Where a pointer points. */
typedef struct ls_place {
  void* data;
  int32_t device_type;
  int32_t device_index;
} ls_place;

/* Errors: LS_RESOURCE_EXHAUSTED, LS_UNSUPPORTED (built without CUDA), LS_DEVICE. */
LS_API ls_status ls_memory_create(int32_t device_type, int32_t device_index, int64_t bytes,
                                  ls_memory** out);
/* Host memory that the device copies from and to by itself (page-locked). */
LS_API ls_status ls_memory_create_pinned(int32_t device_type, int32_t device_index, int64_t bytes,
                                         ls_memory** out);
LS_API void ls_memory_destroy(ls_memory* memory);
/* Null when it has no bytes. */
LS_API ls_status ls_memory_data(const ls_memory* memory, void** data);

/* Ordered on `stream`. The first returns when host memory on either side may be used or reused. */
LS_API ls_status ls_copy_bytes(const ls_place* dst, const ls_place* src, int64_t bytes,
                               void* stream);
/* Returns at once; may be captured. */
LS_API ls_status ls_copy_bytes_async(const ls_place* dst, const ls_place* src, int64_t bytes,
                                     void* stream);
/* Copies src into dst, dense tensors of one dtype and shape, as ls_copy_bytes. Errors:
 * LS_INVALID_ARGUMENT. */
LS_API ls_status ls_copy_tensor(const ls_tensor* dst, const ls_tensor* src, void* stream);
LS_API ls_status ls_fill_bytes(const ls_place* dst, uint8_t value, int64_t bytes, void* stream);
/* Waits until the stream's work is done, and reports what went wrong in it. */
LS_API ls_status ls_synchronize(int32_t device_type, int32_t device_index, void* stream);

typedef struct ls_stream ls_stream;
LS_API ls_status ls_stream_create(int32_t device_type, int32_t device_index, ls_stream** out);
LS_API void ls_stream_destroy(ls_stream* stream);
/* For ls_context.stream and the functions here. */
LS_API ls_status ls_stream_handle(const ls_stream* stream, void** handle);

typedef struct ls_event ls_event;
LS_API ls_status ls_event_create(int32_t device_type, int32_t device_index, ls_event** out);
LS_API void ls_event_destroy(ls_event* event);
LS_API ls_status ls_event_record(ls_event* event, void* stream);
LS_API ls_status ls_event_wait(const ls_event* event);
LS_API ls_status ls_event_handle(const ls_event* event, void** handle);
/* Never blocks. For ls_pool_retire: (ls_event_passed, the event's handle or a cudaEvent_t). */
LS_API bool ls_event_passed(void* handle);

/* Work of a stream that is recorded once and started with one call. Between the two captures
 * nothing runs; forward and commit may be captured, ls_metadata_prepare may not. */
typedef struct ls_graph ls_graph;
LS_API ls_status ls_graph_begin_capture(int32_t device_type, int32_t device_index, void* stream);
/* Ends the recording on every path, also when something in it failed. */
LS_API ls_status ls_graph_end_capture(int32_t device_type, int32_t device_index, void* stream,
                                      ls_graph** out);
LS_API void ls_graph_destroy(ls_graph* graph);
LS_API ls_status ls_graph_launch(const ls_graph* graph, void* stream);
LS_API ls_status ls_graph_num_nodes(const ls_graph* graph, int64_t* nodes);

/* A status block that operators on a device can write, and a look at it that never waits. */
typedef struct ls_status_block ls_status_block;
LS_API ls_status ls_status_block_create(int32_t device_type, int32_t device_index,
                                        ls_status_block** out);
LS_API void ls_status_block_destroy(ls_status_block* block);
/* For ls_context.status; device memory, so not for the ls_device_status_ functions. */
LS_API ls_status ls_status_block_address(const ls_status_block* block, ls_device_status** address);
/* Waits for `stream`, then copies the flags to the host's `out`. */
LS_API ls_status ls_status_block_read(const ls_status_block* block, void* stream,
                                      ls_device_status* out);
LS_API ls_status ls_status_block_reset(ls_status_block* block, void* stream);

typedef struct ls_status_poll ls_status_poll;
LS_API ls_status ls_status_poll_create(int32_t device_type, int32_t device_index,
                                       ls_status_poll** out);
LS_API void ls_status_poll_destroy(ls_status_poll* poll);
/* Queues a copy of a block behind the work on `stream`. Errors: LS_FAILED_PRECONDITION while one is
 * under way. */
LS_API ls_status ls_status_poll_start(ls_status_poll* poll, const ls_device_status* address,
                                      void* stream);
/* *ready is 1 once after each start, when `out` has been filled. */
LS_API ls_status ls_status_poll_ready(ls_status_poll* poll, ls_device_status* out, int32_t* ready);

/* Where a pool lies, and all its planes (recurrent states and windows, in layer order), for slot
 * operators over all layers: up to `capacity` into `planes`; *count says how many there are. */
LS_API ls_status ls_pool_device(const ls_pool* pool, int32_t* device_type, int32_t* device_index);
LS_API ls_status ls_pool_planes(const ls_pool* pool, ls_tensor* planes, size_t capacity,
                                size_t* count);

#ifdef __cplusplus
}
#endif

#endif /* LINESTATE_C_API_DEVICE_H_ */
