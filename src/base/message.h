// Messages: invalid_argument("q: expected rank ", 3, ", got rank ", q.rank).
//
// Public functions that allocate catch std::bad_alloc around their body, answer out_of_memory(),
// and are written so that nothing is half done by then.
#pragma once

#include <new>
#include <sstream>
#include <string>

#include "linestate/status.h"

namespace linestate {

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

template <typename... Parts>
Status invalid_argument(const Parts&... parts) {
  return Status(StatusCode::kInvalidArgument, concat(parts...));
}

/// Its text is short enough to need no memory of its own.
inline Status out_of_memory() noexcept {
  return Status(StatusCode::kResourceExhausted, "out of memory");
}

}  // namespace linestate
