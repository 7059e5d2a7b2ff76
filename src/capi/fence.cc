#include "capi/fence.h"

#include <algorithm>

#include "base/message.h"

namespace linestate::capi {
namespace {

// The text, or a literal when there was no memory for one.
thread_local std::string t_text;
thread_local const char* t_error = "";

}  // namespace

ls_status publish(const Status& status) {
  if (!status.ok()) {
    t_error = "out of memory while keeping the text of an error";
    t_text = status.message();
    t_error = t_text.c_str();
  }
  return static_cast<ls_status>(status.code());
}

ls_status publish_out_of_memory() noexcept {
  t_error = "host memory: the call could not allocate what it needs";
  return LS_RESOURCE_EXHAUSTED;
}

ls_status publish_exception(const char* what) noexcept {
  return fenced([&] {
    return Status(StatusCode::kInternal, concat("expected no exception, got \"", what, '"'));
  });
}

Status require(std::initializer_list<NamedPointer> pointers) {
  for (const NamedPointer& each : pointers) {
    if (each.pointer == nullptr) {
      return invalid_argument(each.name, ": expected a pointer, got null");
    }
  }
  return {};
}

Status check_struct_size(const char* name, std::string_view type, size_t size, size_t known) {
  if (size >= sizeof(size_t) && size <= known) return {};
  return invalid_argument(name, ": expected ", type, ".struct_size from ", sizeof(size_t), " to ",
                          known, ", got ", size, size > known ? ", of a newer linestate" : "");
}

Status put_text(std::string_view text, char* buffer, size_t size, size_t* needed) {
  if (size > 0) LINESTATE_RETURN_IF_ERROR(require({{"buffer", buffer}}));
  if (needed != nullptr) *needed = text.size();
  if (size == 0) return {};
  const size_t count = std::min(text.size(), size - 1);
  std::copy_n(text.data(), count, buffer);
  buffer[count] = '\0';
  return {};
}

const char* last_error() { return t_error; }

}  // namespace linestate::capi

extern "C" const char* ls_last_error(void) { return linestate::capi::last_error(); }
