// Exit codes and the one form of an error message.
#pragma once

#include <cstdio>
#include <string>

#include "cli/interrupt.h"
#include "linestate/status.h"

namespace linestate::cli {

inline constexpr int kOkExitCode = 0;
inline constexpr int kVerificationExitCode = 1;
inline constexpr int kUsageExitCode = 2;

/// "linestate: MESSAGE" on stderr, one line. Returns the exit code.
inline int fail(const Status& status, int code = kUsageExitCode) {
  std::string line = status.message();
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  std::fprintf(stderr, "linestate: %s\n", line.c_str());
  return status.code() == StatusCode::kCancelled ? kInterruptedExitCode : code;
}

}  // namespace linestate::cli
