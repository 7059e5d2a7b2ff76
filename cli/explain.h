// `linestate explain`: which kernel serves a described problem, and why not the others.
#pragma once

#include <cstdint>
#include <string>

namespace linestate::cli {

struct ExplainOptions {
  std::string model = "tiny";
  int64_t layers = 0;      // 0 = all
  std::string op = "all";  // or one operator of the kernel tables
  int64_t rows = 4;        // rows of each kind
  int64_t tokens = 512;    // tokens of an extend row
  std::string device = "auto";
  std::string dtype = "bf16";
  std::string state_dtype = "f32";
  std::string kernel = "auto";
};

/// Prints on stdout. Returns the exit code.
int run_explain(const ExplainOptions& options);

}  // namespace linestate::cli
