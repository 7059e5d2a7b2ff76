// One table per operator phase, tried from the top: the first row that does not refuse runs. This
// is the only bridge from a described problem to a kernel, and it is a pure function of it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "linestate/exec_context.h"
#include "linestate/kernel_info.h"
#include "linestate/status.h"

namespace linestate {

template <typename Params>
struct KernelRow {
  const char* name;     // what a caller writes to force this row
  DeviceType device;    // where it runs
  const char* summary;  // dtypes, sizes and features in one line, for `linestate info`
  /// Why this row cannot serve a problem that the contract allows; empty = it can. Null = always.
  std::string (*refuse)(const Params&, const ExecContext&);
  /// Scratch bytes. Null = none.
  int64_t (*workspace_bytes)(const Params&, const ExecContext&);
  /// Null when this build has no such device; the refusal then says so.
  Status (*run)(const Params&, const ExecContext&);
};

template <typename Params>
struct OpTable {
  const char* op;
  std::span<const KernelRow<Params>> rows;
  /// The contract of the public header, the same for every row.
  Status (*check)(const Params&, const ExecContext&);
};

template <typename Params>
std::string refusal(const KernelRow<Params>& row, const Params& params,
                    const ExecContext& context) {
  if (row.run == nullptr) return "not in this build";
  if (row.device != context.device.type) {
    return concat("runs on ", row.device == DeviceType::kCpu ? "cpu" : "cuda", ", not on ",
                  device_name(context.device));
  }
  return row.refuse == nullptr ? std::string() : row.refuse(params, context);
}

/// The row that runs, or null with every refusal in `choice`.
template <typename Params>
const KernelRow<Params>* select_kernel(const OpTable<Params>& table, const Params& params,
                                       const ExecContext& context, std::string_view kernel,
                                       KernelChoice& choice) {
  choice.op = table.op;
  choice.requested = kernel.empty() ? std::string(kAutoKernel) : std::string(kernel);
  for (const KernelRow<Params>& row : table.rows) {
    if (choice.requested != kAutoKernel && choice.requested != row.name) continue;
    std::string reason = refusal(row, params, context);
    if (reason.empty()) {
      choice.kernel = row.name;
      if (row.workspace_bytes) choice.workspace_bytes = row.workspace_bytes(params, context);
      return &row;
    }
    choice.refused.push_back({row.name, std::move(reason)});
  }
  return nullptr;
}

/// kUnsupported with the refusals, or kNotFound with the names when `requested` is none of them.
Status no_kernel(const KernelChoice& choice, const std::vector<std::string>& names);

template <typename Params>
Status no_kernel(const OpTable<Params>& table, const KernelChoice& choice) {
  std::vector<std::string> names;
  for (const KernelRow<Params>& row : table.rows) names.emplace_back(row.name);
  return no_kernel(choice, names);
}

template <typename Params>
Status run_op(const OpTable<Params>& table, const Params& params, const ExecContext& context,
              std::string_view kernel) {
  LINESTATE_RETURN_IF_ERROR(table.check(params, context));
  KernelChoice choice;
  const KernelRow<Params>* row = select_kernel(table, params, context, kernel, choice);
  if (row == nullptr) return no_kernel(table, choice);
  LINESTATE_RETURN_IF_ERROR(check_workspace(context, choice.workspace_bytes));
  return row->run(params, context);
}

template <typename Params>
Result<int64_t> op_workspace_bytes(const OpTable<Params>& table, const Params& params,
                                   const ExecContext& context, std::string_view kernel) {
  LINESTATE_RETURN_IF_ERROR(table.check(params, context));
  KernelChoice choice;
  if (select_kernel(table, params, context, kernel, choice) == nullptr) {
    return no_kernel(table, choice);
  }
  return choice.workspace_bytes;
}

template <typename Params>
KernelChoice explain_op(const OpTable<Params>& table, const Params& params,
                        const ExecContext& context, std::string_view kernel) {
  KernelChoice choice;
  const Status status = table.check(params, context);
  if (!status.ok()) {
    choice.op = table.op;
    choice.requested = std::string(kernel);
    choice.problem = status.message();
    return choice;
  }
  if (select_kernel(table, params, context, kernel, choice) == nullptr && choice.refused.empty()) {
    choice.problem = no_kernel(table, choice).message();
  }
  return choice;
}

/// Rows of one table as public data.
template <typename Params>
void append_kernel_infos(const OpTable<Params>& table, std::vector<KernelInfo>& out) {
  for (const KernelRow<Params>& row : table.rows) {
    std::string summary = row.summary;
    if (row.run == nullptr) summary += " (not in this build)";
    out.push_back({table.op, row.name, row.device == DeviceType::kCpu ? "cpu" : "cuda", summary});
  }
}

}  // namespace linestate
