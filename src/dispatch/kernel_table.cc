#include "dispatch/kernel_table.h"

namespace linestate {

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
