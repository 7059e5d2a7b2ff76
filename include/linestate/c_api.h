/* The C interface: this header is all of it. docs/c_api.md has an example and the reasons.
 *
 * Errors. Functions return ls_status; every value but LS_OK leaves a text for ls_last_error() that
 *   names the argument, what was expected and what came. Nothing throws, prints or exits.
 * Structs. The first member of a sized struct is its size: LS_INIT(&s) clears s and sets it. Zero
 * is the default of every member. A library newer than the caller takes what is missing as zero; a
 *   struct larger than the library knows is refused by name. In an array all elements have the
 *   struct_size of the first. ls_tensor carries no size: it never changes within an ABI version.
 * Handles. ls_x_create makes one, ls_x_destroy ends it; destroying null does nothing. A handle may
 * be passed to another thread; unless its type says otherwise, one thread uses it at a time. Text.
 * A (buffer, size, needed) triple works as snprintf does: at most size - 1 bytes and a NUL are
 *   written, *needed gets the full length without the NUL; buffer may be null when size is 0,
 * needed may be null. Cut text is no error. Pointers are required unless "null" is mentioned. */
#ifndef LINESTATE_C_API_H_
#define LINESTATE_C_API_H_

#include "linestate/c_api_backend.h"
#include "linestate/c_api_batch.h"
#include "linestate/c_api_cache.h"
#include "linestate/c_api_layer_ops.h"
#include "linestate/c_api_ops.h"
#include "linestate/c_api_state.h"
#include "linestate/c_api_types.h"

#endif /* LINESTATE_C_API_H_ */
