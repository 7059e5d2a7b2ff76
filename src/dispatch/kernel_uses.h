// Counters of which kernels ran. Lock-free on the path of an operator call.
#pragma once

#include <string>

namespace linestate {

/// Counts a call of `kernel` of `op`. `row` identifies the pair and stays valid for the process.
void count_kernel_use(const void* row, const char* op, const char* kernel);

/// Counts that `auto` ran `kernel` although a better row refused for `reason`, and logs the first
/// fallback of each (op, kernel, reason).
void count_fallback(const void* row, const char* op, const char* kernel, const std::string& reason);

}  // namespace linestate
