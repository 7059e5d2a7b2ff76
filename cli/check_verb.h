// `linestate check FILE...`: golden files against the operators of this build.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace linestate::cli {

struct CheckOptions {
  std::vector<std::string> files;  // safetensors files as in tests/golden
  std::string device = "cpu";      // cpu, cuda, cuda:I or auto: a usable GPU, else the cpu
  std::string kernel = "auto";     // kernel name, or auto
  int32_t threads = 0;             // 0 = all
  bool json = false;               // one JSON object instead of the table
};

// Exit codes; when several apply, the first of this list.
inline constexpr int kCheckPastLimits = 1;  // a tensor differs by more than its limit
inline constexpr int kCheckUnreadable = 2;  // bad options, or a file that cannot be read or run
inline constexpr int kCheckNotRun = 3;      // a file whose operator this build does not have

/// Prints one row per compared tensor, then a count. Messages about files go to `err`.
int run_check(const CheckOptions& options, std::ostream& out, std::ostream& err);
/// On stdout and stderr.
int run_check(const CheckOptions& options);

}  // namespace linestate::cli
