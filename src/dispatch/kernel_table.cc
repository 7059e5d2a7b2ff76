#include "dispatch/kernel_table.h"

namespace linestate {

std::string requested_kernel(const char* op, std::string_view kernel) {
  if (!kernel.empty() && kernel != kAutoKernel) return std::string(kernel);
  const std::string_view forced = kernel_from_environment(op);
  return std::string(forced.empty() ? kAutoKernel : forced);
}

Status strict_refusal(const KernelChoice& choice, const std::string& reason) {
  return Status(StatusCode::kUnsupported, concat(choice.op, ": strict, and only the fallback ",
                                                 choice.kernel, " fits; ", reason));
}

bool KernelTrial::concerns(std::string_view name, DeviceType device, bool in_build) {
  const bool automatic = choice_.requested == kAutoKernel;
  if (!automatic && choice_.requested != name) return false;
  if (in_build && device == context_.device.type) return true;
  if (refusals_ == Refusals::kCollect) {
    choice_.refused.push_back(
        {std::string(name), in_build ? concat("runs on ", device_type_name(device), ", not on ",
                                              device_name(context_.device))
                                     : std::string("not in this build")});
  }
  return false;
}

bool KernelTrial::accepts(std::string_view name, std::string reason) {
  if (reason.empty()) {
    choice_.kernel = std::string(name);
    return true;
  }
  if (fallback_reason_.empty()) fallback_reason_ = concat(name, " refused: ", reason);
  if (refusals_ == Refusals::kCollect) {
    choice_.refused.push_back({std::string(name), std::move(reason)});
  }
  return false;
}

Status no_kernel(const KernelChoice& choice, const std::vector<std::string>& names) {
  if (choice.refused.empty()) {
    std::string list(kAutoKernel);
    for (const std::string& name : names) list += ", " + name;
    return Status(StatusCode::kNotFound, concat("kernel: expected one of ", list, " for ",
                                                choice.op, ", got ", choice.requested));
  }
  std::string text = concat(choice.op, ": no kernel fits");
  for (const KernelRefusal& refusal : choice.refused) {
    text += concat("; ", refusal.kernel, ": ", refusal.reason);
  }
  return Status(StatusCode::kUnsupported, text);
}

std::string describe(const KernelChoice& choice) {
  std::string text = choice.op + ": ";
  if (!choice.problem.empty()) {
    text += "cannot run, " + choice.problem + "\n";
  } else if (choice.kernel.empty()) {
    text += "no kernel fits\n";
  } else {
    text += concat(choice.kernel, " (requested ", choice.requested, ", workspace ",
                   choice.workspace_bytes, " bytes)\n");
  }
  for (const KernelRefusal& refusal : choice.refused) {
    text += concat("  not ", refusal.kernel, ": ", refusal.reason, "\n");
  }
  return text;
}

}  // namespace linestate
