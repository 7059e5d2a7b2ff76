/* What everything in the C interface shares; its conventions are in c_api.h. */
#ifndef LINESTATE_C_API_TYPES_H_
#define LINESTATE_C_API_TYPES_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define LS_API __attribute__((visibility("default")))
#else
#define LS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a program compiled against an older header would no longer work. */
#define LS_ABI_VERSION 1u
LS_API uint32_t ls_abi_version(void);
LS_API const char* ls_version(void);           /* "0.1.0" */
LS_API const char* ls_build_description(void); /* compiler, build type, devices */
LS_API int32_t ls_numerics_version(void);      /* changes when a release may give other bits */

/* What StatusCode of status.h says. */
typedef enum ls_status {
  LS_OK = 0,
  LS_INVALID_ARGUMENT = 1,
  LS_UNSUPPORTED = 2,
  LS_FAILED_PRECONDITION = 3,
  LS_NOT_FOUND = 4,
  LS_RESOURCE_EXHAUSTED = 5,
  LS_DATA_LOSS = 6,
  LS_IO = 7,
  LS_CANCELLED = 8,
  LS_DEVICE = 9,
  LS_INTERNAL = 10
} ls_status;

/* Text of the latest call on this thread that failed; "" before any. Valid until the next failure
 * on this thread. */
LS_API const char* ls_last_error(void);
/* "ok", "invalid_argument", ...; "unknown" for another value. */
LS_API const char* ls_status_name(int32_t status);

/* Clears `size` bytes and stores the size in the first member. */
LS_API void ls_init(void* sized_struct, size_t size);
#define LS_INIT(pointer) ls_init((pointer), sizeof *(pointer))

typedef enum ls_dtype {
  LS_F32 = 0,
  LS_BF16 = 1,
  LS_F16 = 2,
  LS_F64 = 3,
  LS_I32 = 4,
  LS_I64 = 5,
  LS_U8 = 6,
  LS_BOOL = 7
} ls_dtype;

typedef enum ls_device_type { LS_CPU = 0, LS_CUDA = 1, LS_EXTERNAL = 2 } ls_device_type;

#define LS_MAX_RANK 5
#define LS_PAD_SLOT (-1) /* any id outside [0, P) is padding; this is the one to use */
#define LS_CHUNK_TOKENS 64

/* A view of the caller's memory, the members of a DLPack tensor with byte_offset already added.
 * rank 0 (a cleared tensor) means "not given". Strides count elements. Refused by name: a rank,
 * dtype or device out of range, a negative size, sizes or strides that overflow 64 bits, a null or
 * misaligned pointer to elements. */
typedef struct ls_tensor {
  void* data;          /* first element; inputs are only read */
  int32_t dtype;       /* ls_dtype */
  int32_t device_type; /* ls_device_type */
  int32_t device_index;
  int32_t rank;
  int64_t shape[LS_MAX_RANK];
  int64_t stride[LS_MAX_RANK];
} ls_tensor;

/* A dense row-major tensor on the CPU: ls_dense(data, LS_F32, 2, (int64_t[]){3, 4}). Checked when
 * it is used, so a bad rank here gives a tensor that is refused there. */
LS_API ls_tensor ls_dense(void* data, int32_t dtype, int32_t rank, const int64_t* shape);
/* Elements [begin, end) of dimension `dim`. Errors: LS_INVALID_ARGUMENT. */
LS_API ls_status ls_slice(const ls_tensor* tensor, int32_t dim, int64_t begin, int64_t end,
                          ls_tensor* out);

/* Flags of the device status block, as DeviceFlag of exec_context.h. */
typedef enum ls_device_flag {
  LS_FLAG_SLOT_OUT_OF_RANGE = 1 << 0,
  LS_FLAG_BAD_OFFSETS = 1 << 1,
  LS_FLAG_BAD_PARENT = 1 << 2,
  LS_FLAG_BAD_ACCEPTED_NODE = 1 << 3,
  LS_FLAG_DUPLICATE_SLOT = 1 << 4,
  LS_FLAG_SNAPSHOT_NOT_TAKEN = 1 << 5,
  LS_FLAG_STATE_OVERFLOW = 1 << 6,
  LS_FLAG_NON_FINITE = 1 << 7
} ls_device_flag;

/* Sticky error block: 64 bytes of the caller's, aligned to 64, that operators write with atomic
 * operations. Reset before first use. Any thread may read it at any time. */
typedef struct ls_device_status {
  uint32_t words[16];
} ls_device_status;

LS_API ls_status ls_device_status_reset(ls_device_status* block);
LS_API ls_status ls_device_status_flags(const ls_device_status* block, uint32_t* flags);
/* Lowest row that raised `flag`, -1 when none did. */
LS_API ls_status ls_device_status_row(const ls_device_status* block, uint32_t flag, int32_t* row);
/* Slot and layer of the first LS_FLAG_STATE_OVERFLOW, -1 when there was none. */
LS_API ls_status ls_device_status_overflow(const ls_device_status* block, int32_t* slot,
                                           int32_t* layer);
/* One line per raised flag; empty when clean. */
LS_API ls_status ls_device_status_describe(const ls_device_status* block, char* buffer, size_t size,
                                           size_t* needed);

/* Where and how a call runs. Calls that run at the same time need workspaces of their own. */
typedef struct ls_context {
  size_t struct_size;
  int32_t device_type;
  int32_t device_index;
  int32_t num_threads;   /* CPU: 0 = all OpenMP offers; never changes bits */
  int32_t check_finite;  /* non-zero: raise LS_FLAG_NON_FINITE; reads the output once */
  int32_t strict;        /* non-zero: a fallback is LS_UNSUPPORTED */
  int32_t slots_checked; /* non-zero: rows share no slot; no CUDA kernel looks for that */
  void* stream;          /* CUDA: cudaStream_t */
  void* workspace;       /* aligned to 64 bytes; size from *_workspace_bytes */
  int64_t workspace_bytes;
  ls_device_status* status; /* null = not wanted */
} ls_context;

/* Called once for every new (operator, kernel, reason) fallback, on whatever thread runs the
 * operator; null = silent. The text is the library's for the duration of the call. One for the
 * process; set it before operators run on other threads. */
typedef void (*ls_log_callback)(const char* message, void* user);
LS_API void ls_set_log_callback(ls_log_callback callback, void* user);

/* Lists: one entry a line, fields apart by tabs. Any thread. */
/* operator, kernel, device, summary; in the order in which "auto" asks */
LS_API ls_status ls_list_kernels(char* buffer, size_t size, size_t* needed);
/* device ("cpu", "cuda:0"), threads, memory bytes, features, name */
LS_API ls_status ls_list_devices(char* buffer, size_t size, size_t* needed);
/* Why there is no CUDA device; empty when there is one */
LS_API ls_status ls_cuda_note(char* buffer, size_t size, size_t* needed);
/* preset name */
LS_API ls_status ls_list_presets(char* buffer, size_t size, size_t* needed);
/* operator, kernel, calls, fallbacks, last reason; since start or the last reset */
LS_API ls_status ls_kernel_uses(char* buffer, size_t size, size_t* needed);
LS_API void ls_reset_kernel_uses(void);

#ifdef __cplusplus
}
#endif

#endif /* LINESTATE_C_API_TYPES_H_ */
