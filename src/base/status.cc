#include "linestate/status.h"

namespace linestate {

std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid_argument";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kFailedPrecondition:
      return "failed_precondition";
    case StatusCode::kNotFound:
      return "not_found";
    case StatusCode::kResourceExhausted:
      return "resource_exhausted";
    case StatusCode::kDataLoss:
      return "data_loss";
    case StatusCode::kIo:
      return "io";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kDevice:
      return "device";
    case StatusCode::kInternal:
      return "internal";
  }
  return "unknown";
}

std::string Status::to_string() const {
  std::string text(status_code_name(code_));
  if (!message_.empty()) text += ": " + message_;
  return text;
}

}  // namespace linestate
