/* The C interface: this header is all of it. docs/c_api.md has an example and the reasons.
 *
 * Errors: functions return ls_status; every value but LS_OK leaves a text for ls_last_error() that
 * names the argument, what was expected and what came. Nothing throws, prints or exits.
 *
 * Structs: the first member of a sized struct is its size; LS_INIT(&s) clears s and sets it. Zero
 * is the default of every member. A library newer than the caller takes what is missing as zero, a
 * struct larger than the library knows is refused by name. All elements of an array have the
 * struct_size of the first. ls_tensor carries no size: it never changes within an ABI version.
 *
 * Handles: ls_x_create makes one, ls_x_destroy ends it, and destroying null does nothing. A handle
 * may move between threads; unless its type says more, one thread uses it at a time.
 *
 * Text: a (buffer, size, needed) triple works as snprintf does. At most size - 1 bytes and a NUL
 * are written, *needed gets the full length without the NUL. The buffer may be null when size is 0,
 * needed may be null. Cut text is no error.
 *
 * Pointers are required unless "null" is mentioned. */
#ifndef LINESTATE_C_API_H_
#define LINESTATE_C_API_H_

#include "linestate/capi/c_api_backend.h"
#include "linestate/capi/c_api_batch.h"
#include "linestate/capi/c_api_cache.h"
#include "linestate/capi/c_api_device.h"
#include "linestate/capi/c_api_kernels.h"
#include "linestate/capi/c_api_layer_ops.h"
#include "linestate/capi/c_api_ops.h"
#include "linestate/capi/c_api_state.h"
#include "linestate/capi/c_api_transfer.h"
#include "linestate/capi/c_api_types.h"

#endif /* LINESTATE_C_API_H_ */
