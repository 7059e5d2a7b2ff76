// What stands between C and C++: no exception passes, every error leaves its text, every sized
// struct is copied by the rules of c_api.h.
#pragma once

#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "linestate/capi/c_api_types.h"
#include "linestate/status.h"

namespace linestate::capi {

/// Keeps the text of an error for ls_last_error().
ls_status publish(const Status& status);
/// The same without allocating.
ls_status publish_out_of_memory() noexcept;
ls_status publish_exception(const char* what) noexcept;

/// Runs `body`, a callable that returns Status, and turns whatever happens into a ls_status.
template <typename Body>
ls_status fenced(const Body& body) noexcept {
  try {
    return publish(body());
  } catch (const std::bad_alloc&) {
    return publish_out_of_memory();
  } catch (const std::exception& error) {
    return publish_exception(error.what());
  } catch (...) {
    return publish_exception("unknown");
  }
}

struct NamedPointer {
  const char* name;
  const void* pointer;
};
/// kInvalidArgument naming the first that is null.
Status require(std::initializer_list<NamedPointer> pointers);

/// "ls_kda_params".
template <typename T>
std::string_view type_name() {
  const std::string_view text =
      __PRETTY_FUNCTION__;  // "... [with T = ls_x; ...]" or "... [T = ls_x]"
  const size_t begin = text.find("T = ") + 4;
  return text.substr(begin, text.find_first_of(";]", begin) - begin);
}

Status check_struct_size(const char* name, std::string_view type, size_t size, size_t known);

/// Copies a caller's struct; what an older caller does not have is zero.
template <typename T>
Status load(const char* name, const T* in, T* out) {
  *out = T{};
  LINESTATE_RETURN_IF_ERROR(require({{name, in}}));
  size_t size = 0;
  std::memcpy(&size, in, sizeof(size));
  LINESTATE_RETURN_IF_ERROR(check_struct_size(name, type_name<T>(), size, sizeof(T)));
  std::memcpy(static_cast<void*>(out), in, size);
  out->struct_size = sizeof(T);
  return {};
}

/// Fills as much of the caller's struct as the caller knows.
template <typename T>
Status store(const char* name, const T& value, T* out) {
  LINESTATE_RETURN_IF_ERROR(require({{name, out}}));
  const size_t size = out->struct_size;
  LINESTATE_RETURN_IF_ERROR(check_struct_size(name, type_name<T>(), size, sizeof(T)));
  std::memcpy(static_cast<void*>(out), &value, size);
  out->struct_size = size;
  return {};
}

/// Element `index` of a caller's array of structs, whose stride is the first element's size.
template <typename T>
Status load_element(const char* name, const T* first, size_t index, T* out) {
  LINESTATE_RETURN_IF_ERROR(require({{name, first}}));
  size_t stride = 0;
  std::memcpy(&stride, first, sizeof(stride));
  LINESTATE_RETURN_IF_ERROR(check_struct_size(name, type_name<T>(), stride, sizeof(T)));
  const char* at = reinterpret_cast<const char*>(first) + index * stride;
  size_t size = 0;
  std::memcpy(&size, at, sizeof(size));
  LINESTATE_RETURN_IF_ERROR(check_struct_size(name, type_name<T>(), size, stride));
  return load(name, reinterpret_cast<const T*>(at), out);
}

/// The first `capacity` of `values`, each as `make` gives it, into a caller's array, whose stride
/// is the first element's size. Every element gets that size.
template <typename Values, typename Make, typename T>
Status store_array(const char* name, const Values& values, const Make& make, T* out,
                   size_t capacity) {
  if (capacity == 0) return {};
  LINESTATE_RETURN_IF_ERROR(require({{name, out}}));
  const size_t size = out->struct_size;
  LINESTATE_RETURN_IF_ERROR(check_struct_size(name, type_name<T>(), size, sizeof(T)));
  char* at = reinterpret_cast<char*>(out);
  for (size_t i = 0; i < values.size() && i < capacity; ++i, at += size) {
    T value = make(values[i]);
    value.struct_size = size;
    std::memcpy(at, &value, size);
  }
  return {};
}

/// Text into a caller's buffer, as snprintf does.
Status put_text(std::string_view text, char* buffer, size_t size, size_t* needed);

/// A value into a caller's variable.
template <typename T, typename Value>
Status put(const char* name, T* out, Value&& value) {
  LINESTATE_RETURN_IF_ERROR(require({{name, out}}));
  *out = static_cast<T>(std::forward<Value>(value));
  return {};
}

template <typename T, typename Value>
Status put_result(const char* name, T* out, const Result<Value>& result) {
  LINESTATE_RETURN_IF_ERROR(require({{name, out}}));
  if (!result.ok()) return result.status();
  return put(name, out, *result);
}

/// Makes a handle around the result of a C++ create function; *out is null on an error.
template <typename Handle, typename Value>
Status put_handle(Handle** out, Result<Value> made) {
  LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
  *out = nullptr;
  if (!made.ok()) return made.status();
  *out = new Handle{std::move(*made)};
  return {};
}

/// Text arguments: null = empty.
inline std::string_view text_or_empty(const char* text) {
  return text == nullptr ? std::string_view() : std::string_view(text);
}

}  // namespace linestate::capi
