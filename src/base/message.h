// Messages: invalid_argument("q: expected rank ", 3, ", got rank ", q.rank).
#pragma once

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

}  // namespace linestate
