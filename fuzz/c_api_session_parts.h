// What sessions of c_api_session.h are made of: memory of exact size, and a kernel that answers
// what the input says.
#pragma once

#include "fuzz/c_api_arena.h"

namespace linestate::fuzzing {

inline void must(bool holds) {
  if (!holds) std::abort();
}

/// An error is never internal, and has a text.
inline bool ok(ls_status status) {
  must(status != LS_INTERNAL);
  must(status == LS_OK || ls_last_error()[0] != '\0');
  return status == LS_OK;
}

/// Floats on the heap, exactly as many as the tensor holds.
struct Block {
  std::vector<float> values;
  ls_tensor view{};

  Block() = default;
  Block(std::initializer_list<int64_t> shape, float value) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    values.assign(static_cast<size_t>(count), value);
    view = ls_dense(values.data(), LS_F32, static_cast<int32_t>(shape.size()), shape.begin());
    static float none = 0.0f;
    if (values.empty()) view.data = &none;
  }
};

// `user` points to the byte that decides. Of a kernel for kda_decode.
inline ls_status run_decode(const void* params, const ls_context* context, void* user, char* error,
                            size_t size) {
  const uint8_t how = *static_cast<const uint8_t*>(user);
  if (how % 4 == 0) return ls_kda_decode(static_cast<const ls_kda_params*>(params), context, "cpu");
  if (how % 4 == 1) std::memset(error, 'e', size);  // no end: the library's to keep
  return static_cast<ls_status>(how % 4 == 2 ? LS_IO : LS_DEVICE);
}

inline int32_t refuse_decode(const void*, const ls_context*, void* user, char* reason,
                             size_t size) {
  const uint8_t how = *static_cast<const uint8_t*>(user);
  if (how < 128) return 0;
  if (how % 2 == 0) std::memset(reason, 'r', size);
  return 1;
}

inline int64_t decode_bytes(const void* params, const ls_context* context, void*) {
  int64_t bytes = 0;
  ls_kda_decode_workspace_bytes(static_cast<const ls_kda_params*>(params), context, "cpu", &bytes);
  return bytes;
}

}  // namespace linestate::fuzzing
