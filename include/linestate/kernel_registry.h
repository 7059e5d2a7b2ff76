// Kernels from outside the library, for a device of their own or for one linestate knows, and the
// book-keeping of which kernels ran.
//
// Precedence of names: a call's name > phase option > base option > environment > auto. The
// environment variable LINESTATE_KERNELS ("kda_decode=ref,*=cpu") is read once, at first use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "linestate/exec_context.h"
#include "linestate/status.h"

namespace linestate {

/// A row that third-party code adds to the table of one operator. Params is the operator's public
/// Params struct. The functions must stay callable, and `user` valid, until the row is removed.
template <typename Params>
struct ExternalKernel {
  std::string name;  // what a caller writes to force it; unique within the operator
  DeviceType device = DeviceType::kExternal;
  std::string summary;  // one line for `linestate info`
  /// Why this kernel cannot serve a problem; empty = it can. Null = always.
  std::string (*refuse)(const Params&, const ExecContext&, void* user) = nullptr;
  /// Scratch bytes. Null = none.
  int64_t (*workspace_bytes)(const Params&, const ExecContext&, void* user) = nullptr;
  Status (*run)(const Params&, const ExecContext&, void* user) = nullptr;  // required
  void* user = nullptr;
};

/// Adds a row in front of the built-in ones: `auto` asks external kernels first, latest first.
/// Errors: kNotFound (no such operator, or not one of Params), kInvalidArgument (no name, no run, a
/// name that is taken). Thread-safe; calls already running keep the table they started with.
template <typename Params>
Status register_kernel(std::string_view op, const ExternalKernel<Params>& kernel);

/// Removes an external row. Errors: kNotFound.
Status unregister_kernel(std::string_view op, std::string_view kernel);

/// How often a kernel was chosen since start or the last reset.
struct KernelUse {
  std::string op;
  std::string kernel;
  int64_t calls = 0;
  int64_t fallbacks = 0;    // of these: `auto` had a better row on this device, which refused
  std::string last_reason;  // why the better row refused, of the latest fallback
};

/// Every kernel that ran or was fallen back to. Counting costs one relaxed atomic add a call.
std::vector<KernelUse> kernel_uses();
void reset_kernel_uses();

/// Called once for every new (operator, kernel, reason) fallback; null = silent. The text names
/// all three. The callback may run on any thread that calls an operator, and must not throw.
using LogCallback = void (*)(const char* message, void* user);
void set_log_callback(LogCallback callback, void* user);

}  // namespace linestate
