// One table per operator phase, tried from the top: the first row that does not refuse runs. This
// is the only bridge from a described problem to a kernel, and it is a pure function of it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <typeindex>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "dispatch/external_kernels.h"
#include "dispatch/kernel_uses.h"
#include "dispatch/written_slots.h"
#include "linestate/exec_context.h"
#include "linestate/kernel_info.h"
#include "linestate/status.h"

/// The run function of a row that needs CUDA: null in a build without it.
#ifdef LINESTATE_CUDA
#define LINESTATE_CUDA_RUN(function) function
#else
#define LINESTATE_CUDA_RUN(function) nullptr
#endif

namespace linestate {

/// The name that selection goes by: the caller's, else the environment's, else auto.
std::string requested_kernel(const char* op, std::string_view kernel);
/// What a strict context gets instead of a fallback.
Status strict_refusal(const KernelChoice& choice, const std::string& reason);

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

/// The kernel that runs: a built-in row, or an external one kept alive while it runs.
template <typename Params>
struct SelectedKernel {
  const KernelRow<Params>* row = nullptr;
  std::shared_ptr<const ExternalKernel<Params>> external;
  std::string fallback_reason;  // why a better row on this device refused; empty = none did

  explicit operator bool() const { return row != nullptr || external != nullptr; }
  const void* key() const {
    return row != nullptr ? static_cast<const void*>(row) : external.get();
  }
  const char* name() const { return row != nullptr ? row->name : external->name.c_str(); }
  int64_t workspace_bytes(const Params& params, const ExecContext& context) const {
    if (row != nullptr) {
      return row->workspace_bytes == nullptr ? 0 : row->workspace_bytes(params, context);
    }
    return external->workspace_bytes == nullptr
               ? 0
               : external->workspace_bytes(params, context, external->user);
  }
  Status run(const Params& params, const ExecContext& context) const {
    return row != nullptr ? row->run(params, context)
                          : external->run(params, context, external->user);
  }
};

/// Whether a selection writes down why each row was passed over. A call that finds its kernel does
/// not: texts are memory, and a call allocates nothing.
enum class Refusals : uint8_t { kSkip, kCollect };

/// Collects refusals while the rows of one operator are tried in order.
class KernelTrial {
 public:
  KernelTrial(KernelChoice& choice, const ExecContext& context, Refusals refusals)
      : choice_(choice), context_(context), refusals_(refusals) {}

  /// False for a row that another name was asked for, or that another device runs (noted).
  bool concerns(std::string_view name, DeviceType device, bool in_build);
  /// Takes the row's own answer; true when it runs.
  bool accepts(std::string_view name, std::string reason);
  /// Refusals by rows of this device, which make a later choice a fallback.
  const std::string& fallback_reason() const { return fallback_reason_; }

 private:
  KernelChoice& choice_;
  const ExecContext& context_;
  Refusals refusals_;
  std::string fallback_reason_;
};

template <typename Params>
const KernelRow<Params>* select_row(const OpTable<Params>& table, const Params& params,
                                    const ExecContext& context, KernelTrial& trial) {
  for (const KernelRow<Params>& row : table.rows) {
    if (!trial.concerns(row.name, row.device, row.run != nullptr)) continue;
    std::string reason = row.refuse == nullptr ? std::string() : row.refuse(params, context);
    if (trial.accepts(row.name, std::move(reason))) return &row;
  }
  return nullptr;
}

/// Scratch of the built-in row that a call would run, 0 when none would. For plans: tensors have
/// shapes and no memory, which external kernels are not asked about.
template <typename Params>
int64_t planned_workspace_bytes(const OpTable<Params>& table, const Params& params,
                                const ExecContext& context, std::string_view kernel) {
  KernelChoice choice;
  choice.requested = requested_kernel(table.op, kernel);
  KernelTrial trial(choice, context, Refusals::kSkip);
  const KernelRow<Params>* row = select_row(table, params, context, trial);
  if (row == nullptr || row->workspace_bytes == nullptr) return 0;
  return row->workspace_bytes(params, context);
}

/// The kernel that runs, or none; `choice` gets every refusal that is collected. choice.op is the
/// caller's to set, where it is read: a long name would cost an allocation a call.
template <typename Params>
SelectedKernel<Params> select_kernel(const OpTable<Params>& table, const Params& params,
                                     const ExecContext& context, std::string_view kernel,
                                     KernelChoice& choice, Refusals refusals) {
  choice.requested = requested_kernel(table.op, kernel);
  KernelTrial trial(choice, context, refusals);
  SelectedKernel<Params> selected;
  if (const auto external = external_rows<Params>(table.op)) {
    for (const auto& row : *external) {
      if (!trial.concerns(row->name, row->device, true)) continue;
      std::string reason =
          row->refuse == nullptr ? std::string() : row->refuse(params, context, row->user);
      if (!trial.accepts(row->name, std::move(reason))) continue;
      selected.external = row;
      break;
    }
  }
  if (!selected) selected.row = select_row(table, params, context, trial);
  if (!selected) return selected;
  selected.fallback_reason = trial.fallback_reason();
  choice.workspace_bytes = selected.workspace_bytes(params, context);
  return selected;
}

/// kUnsupported with the refusals, or kNotFound with the names when `requested` is none of them.
Status no_kernel(const KernelChoice& choice, const std::vector<std::string>& names);

template <typename Params>
Status no_kernel(const OpTable<Params>& table, const Params& params, const ExecContext& context,
                 std::string_view kernel) {
  KernelChoice choice;
  choice.op = table.op;
  select_kernel(table, params, context, kernel, choice, Refusals::kCollect);
  std::vector<std::string> names;
  for (const KernelRow<Params>& row : table.rows) names.emplace_back(row.name);
  return no_kernel(choice, names);
}

template <typename Params>
Status run_op(const OpTable<Params>& table, const Params& params, const ExecContext& context,
              std::string_view kernel) try {
  LINESTATE_RETURN_IF_ERROR(table.check(params, context));
  KernelChoice choice;
  const SelectedKernel<Params> selected =
      select_kernel(table, params, context, kernel, choice, Refusals::kSkip);
  if (!selected) return no_kernel(table, params, context, kernel);
  if (!selected.fallback_reason.empty()) {
    choice.op = table.op;
    if (context.strict) return strict_refusal(choice, selected.fallback_reason);
    count_fallback(selected.key(), table.op, selected.name(), selected.fallback_reason);
  }
  LINESTATE_RETURN_IF_ERROR(check_workspace(context, choice.workspace_bytes));
  count_kernel_use(selected.key(), table.op, selected.name());
  LINESTATE_RETURN_IF_ERROR(check_slots_on_device(params, context));
  return selected.run(params, context);
} catch (const std::bad_alloc&) {  // of a message or a refusal: kernels allocate nothing
  return out_of_memory();
}

template <typename Params>
Result<int64_t> op_workspace_bytes(const OpTable<Params>& table, const Params& params,
                                   const ExecContext& context, std::string_view kernel) try {
  LINESTATE_RETURN_IF_ERROR(table.check(params, context));
  KernelChoice choice;
  const SelectedKernel<Params> selected =
      select_kernel(table, params, context, kernel, choice, Refusals::kSkip);
  if (!selected) return no_kernel(table, params, context, kernel);
  if (context.strict && !selected.fallback_reason.empty()) {
    choice.op = table.op;
    return strict_refusal(choice, selected.fallback_reason);
  }
  return choice.workspace_bytes;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

template <typename Params>
KernelChoice explain_op(const OpTable<Params>& table, const Params& params,
                        const ExecContext& context, std::string_view kernel) {
  KernelChoice choice;
  choice.op = table.op;
  const Status status = table.check(params, context);
  if (!status.ok()) {
    choice.requested = std::string(kernel);
    choice.problem = status.message();
    return choice;
  }
  if (!select_kernel(table, params, context, kernel, choice, Refusals::kCollect) &&
      choice.refused.empty()) {
    choice.problem = no_kernel(table, params, context, kernel).message();
  }
  return choice;
}

/// Names of a table's rows, when the table is of these Params.
template <typename Params>
bool kernel_names_if(const OpTable<Params>& table, std::type_index params,
                     std::vector<std::string>& names) {
  if (params != typeid(Params)) return false;
  for (const KernelRow<Params>& row : table.rows) names.emplace_back(row.name);
  return true;
}

/// Rows of one table as public data.
template <typename Params>
void append_kernel_infos(const OpTable<Params>& table, std::vector<KernelInfo>& out) {
  for (const KernelRow<Params>& row : table.rows) {
    std::string summary = row.summary;
    if (row.run == nullptr) summary += " (not in this build)";
    out.push_back({table.op, row.name, device_type_name(row.device), summary});
  }
}

}  // namespace linestate
