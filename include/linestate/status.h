// Errors as values. The library never throws, prints or exits on a caller's mistake: it returns a
// Status whose message names the argument, what was expected and what came.
//
// Thread-safety: Status and Result are plain values; share them as you would share a std::string.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace linestate {

enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidArgument = 1,     // the caller passed something a contract forbids
  kUnsupported = 2,         // legal, but no kernel here can do it; the message lists every refusal
  kFailedPrecondition = 3,  // the object is in the wrong state for this call
  kNotFound = 4,            // a name, file or slot that does not exist
  kResourceExhausted = 5,   // memory, slots or disk ran out
  kDataLoss = 6,            // a file is damaged, truncated or of another format
  kIo = 7,                  // the operating system refused a read or write
  kCancelled = 8,           // the caller asked to stop
  kDevice = 9,              // a device call failed; the message has the call and its text
  kInternal = 10,           // a bug in linestate
};

/// Short stable name: "ok", "invalid_argument", ...
std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  /// "invalid_argument: q: expected rank 3 [T, H, K], got rank 2"; "ok" when ok.
  std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

/// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    if (status_.ok()) status_ = Status(StatusCode::kInternal, "Result built from an ok Status");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  /// REQUIRES: ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace linestate

/// Leaves the calling function with the error when `expr` is not ok.
#define LINESTATE_RETURN_IF_ERROR(expr)                    \
  do {                                                     \
    ::linestate::Status linestate_status_ = (expr);        \
    if (!linestate_status_.ok()) return linestate_status_; \
  } while (false)
