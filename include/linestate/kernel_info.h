// Which kernel runs, and why not the others. Selection is a pure function of the described
// problem: the same shapes, dtypes, strides and device always give the same name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace linestate {

/// The kernel name that lets the table choose: the first row that supports the problem.
inline constexpr std::string_view kAutoKernel = "auto";

struct KernelRefusal {
  std::string kernel;
  std::string reason;  // "state: expected f32, bf16 or f16, got i32"
};

/// Answer of an operator's explain function.
struct KernelChoice {
  std::string op;                      // "kda_decode"
  std::string requested;               // "auto" or the name that was asked for
  std::string kernel;                  // the row that runs; empty when every row refused
  int64_t workspace_bytes = 0;         // what that row needs
  std::vector<KernelRefusal> refused;  // rows that were looked at before it and why they lost
  std::string problem;                 // why the call would fail before any row is asked
};

/// "kda_decode: cpu (workspace 4096 bytes)\n  cuda_sm90: device is cpu\n".
std::string describe(const KernelChoice& choice);

/// One row of a kernel table, for `linestate info`.
struct KernelInfo {
  std::string op;
  std::string kernel;
  std::string device;   // "cpu", "cuda"
  std::string summary;  // dtypes, sizes and features in one line
};

/// Every kernel of this build, in the order `auto` tries them.
std::vector<KernelInfo> list_kernels();

}  // namespace linestate
