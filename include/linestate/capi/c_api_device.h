/* Memory and streams of a device, for callers that have no CUDA of their own: device_memory.h says
 * how they behave. All of it works for the CPU too. */
#ifndef LINESTATE_C_API_DEVICE_H_
#define LINESTATE_C_API_DEVICE_H_

#include "linestate/capi/c_api_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes on one device, aligned to 256, contents undefined. Destroying waits for nothing. */
typedef struct ls_memory ls_memory;

/* Errors: LS_UNSUPPORTED (no such device in this build), LS_RESOURCE_EXHAUSTED. */
LS_API ls_status ls_memory_create(int32_t device_type, int32_t device_index, int64_t bytes,
                                  ls_memory** out);
LS_API void ls_memory_destroy(ls_memory* memory);
/* Null when it has no bytes. */
LS_API ls_status ls_memory_data(const ls_memory* memory, void** data);

/* Copies src into dst, dense tensors of one dtype and shape, ordered on `stream` (null = the
 * default one), which belongs to the CUDA side. Returns when host memory on either side may be
 * reused. Errors: LS_INVALID_ARGUMENT. */
LS_API ls_status ls_copy_tensor(const ls_tensor* dst, const ls_tensor* src, void* stream);

/* A stream of its own, which waits for no other one. On the CPU its handle is null. */
typedef struct ls_stream ls_stream;

LS_API ls_status ls_stream_create(int32_t device_type, int32_t device_index, ls_stream** out);
LS_API void ls_stream_destroy(ls_stream* stream);
/* What ls_context.stream takes: a cudaStream_t. */
LS_API ls_status ls_stream_handle(const ls_stream* stream, void** handle);
/* Waits for all work on a stream, null = the default one. Errors: LS_DEVICE, what went wrong. */
LS_API ls_status ls_synchronize(int32_t device_type, int32_t device_index, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* LINESTATE_C_API_DEVICE_H_ */
