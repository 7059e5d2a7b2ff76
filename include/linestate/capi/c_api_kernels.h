/* Kernels from outside the library, in C: kernel_registry.h says how they are chosen. */
#ifndef LINESTATE_C_API_KERNELS_H_
#define LINESTATE_C_API_KERNELS_H_

#include "linestate/capi/c_api_layer_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `params` is the struct that the operator's ls_<op>() takes (const ls_kda_params* for
 * "kda_decode"), its sizes set and every default filled in, after the operator's own checks; it and
 * `context` are the library's for the duration of the call. Text goes into the buffer as snprintf
 * writes it. The functions run on whatever thread calls the operator and must not throw. */
typedef struct ls_kernel {
  size_t struct_size;
  const char* name;    /* what a caller writes to force it; unique within the operator */
  const char* summary; /* one line for ls_list_kernels; null = none */
  int32_t device_type; /* ls_device_type: where it runs; LS_CPU when not set */
  int32_t reserved;    /* zero */
  /* Non-zero: cannot serve this problem, and why. Null = serves all. */
  int32_t (*refuse)(const void* params, const ls_context* context, void* user, char* reason,
                    size_t size);
  /* Scratch bytes. Null = none. */
  int64_t (*workspace_bytes)(const void* params, const ls_context* context, void* user);
  ls_status (*run)(const void* params, const ls_context* context, void* user, char* error,
                   size_t size);
  void* user;
} ls_kernel;

/* Puts it in front of the built-in kernels of `op`, latest first. Functions and `user` must stay
 * valid until it is unregistered and the calls already running have returned; the struct and its
 * texts are copied. Any thread. Errors: LS_NOT_FOUND (no such operator), LS_INVALID_ARGUMENT (no
 * name, a name that is taken, no run). */
LS_API ls_status ls_register_kernel(const char* op, const ls_kernel* kernel);
/* Errors: LS_NOT_FOUND. */
LS_API ls_status ls_unregister_kernel(const char* op, const char* kernel);

#ifdef __cplusplus
}
#endif

#endif /* LINESTATE_C_API_KERNELS_H_ */
