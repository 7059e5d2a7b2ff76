// Kernels that a C program registers: its functions behind those of ExternalKernel.
#include <memory>
#include <mutex>

#include "capi/outgoing.h"
#include "linestate/kernel_registry.h"

using namespace linestate;        // NOLINT: this file is the wall between the two
using namespace linestate::capi;  // NOLINT

namespace {

struct CKernel {
  std::string name;
  std::string summary;
  ls_kernel calls{};
};

constexpr size_t kTextBytes = 512;  // of a refusal or an error

/// The functions of ExternalKernel<Params>; `user` is the CKernel.
template <typename Params>
struct Bridge {
  static std::string refuse(const Params& params, const ExecContext& context, void* user) {
    const auto& kernel = *static_cast<const CKernel*>(user);
    const Outgoing<Params> out(params);
    const ls_context c_context = to_c(context);
    char text[kTextBytes] = "";
    if (kernel.calls.refuse(&out.c, &c_context, kernel.calls.user, text, sizeof(text)) == 0) {
      return {};
    }
    text[kTextBytes - 1] = '\0';
    return text[0] != '\0' ? text : "it gives no reason";
  }

  static int64_t workspace_bytes(const Params& params, const ExecContext& context, void* user) {
    const auto& kernel = *static_cast<const CKernel*>(user);
    const Outgoing<Params> out(params);
    const ls_context c_context = to_c(context);
    return kernel.calls.workspace_bytes(&out.c, &c_context, kernel.calls.user);
  }

  static Status run(const Params& params, const ExecContext& context, void* user) {
    const auto& kernel = *static_cast<const CKernel*>(user);
    const Outgoing<Params> out(params);
    const ls_context c_context = to_c(context);
    char text[kTextBytes] = "";
    const ls_status code =
        kernel.calls.run(&out.c, &c_context, kernel.calls.user, text, sizeof(text));
    if (code == LS_OK) return {};
    text[kTextBytes - 1] = '\0';
    const bool known = code > LS_OK && code <= LS_INTERNAL;
    return Status(known ? static_cast<StatusCode>(code) : StatusCode::kInternal,
                  text[0] != '\0' ? std::string(text)
                                  : concat("kernel ", kernel.name, ": failed with status ",
                                           static_cast<int>(code), " and no text"));
  }
};

template <typename Params>
Status register_as(std::string_view op, CKernel* kernel, DeviceType device) {
  ExternalKernel<Params> row;
  row.name = kernel->name;
  row.device = device;
  row.summary = kernel->summary;
  if (kernel->calls.refuse != nullptr) row.refuse = Bridge<Params>::refuse;
  if (kernel->calls.workspace_bytes != nullptr)
    row.workspace_bytes = Bridge<Params>::workspace_bytes;
  if (kernel->calls.run != nullptr) row.run = Bridge<Params>::run;
  row.user = kernel;
  return register_kernel(op, row);
}

// An operator knows one type of Params, the others are not found.
template <typename... All>
Status register_any(std::string_view op, CKernel* kernel, DeviceType device) {
  Status status;
  const bool found =
      ((status = register_as<All>(op, kernel, device), status.code() != StatusCode::kNotFound) ||
       ...);
  if (found) return status;
  return Status(StatusCode::kNotFound, concat("op: expected the name of an operator, got ", op));
}

// Never given back: a call that runs may outlast the registration.
std::vector<std::unique_ptr<CKernel>>& kept_kernels() {
  static std::vector<std::unique_ptr<CKernel>> kept;
  return kept;
}
std::mutex& kept_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

ls_status ls_register_kernel(const char* op, const ls_kernel* kernel) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"op", op}}));
    auto held = std::make_unique<CKernel>();
    LINESTATE_RETURN_IF_ERROR(load("kernel", kernel, &held->calls));
    const Result<Device> device = to_device(held->calls.device_type, 0);
    if (!device.ok()) return device.status();
    held->name = text_or_empty(held->calls.name);
    held->summary = text_or_empty(held->calls.summary);
    const std::lock_guard<std::mutex> lock(kept_mutex());
    kept_kernels().reserve(kept_kernels().size() + 1);
    LINESTATE_RETURN_IF_ERROR(
        (register_any<CausalConv1dParams, CausalConv1dVerifyParams, KdaParams, KdaVerifyParams,
                      KdaCommitParams, KdaReplayParams, LightningParams, LightningVerifyParams,
                      LightningCommitParams, LightningReplayParams, GatedRmsNormParams,
                      GroupRmsNormParams, RmsSumSqParams, TreeFromLinksParams, StateClearParams,
                      StateCopyParams, ReplayStepParams, ReplayFoldParams>(op, held.get(),
                                                                           device->type)));
    kept_kernels().push_back(std::move(held));
    return {};
  });
}

ls_status ls_unregister_kernel(const char* op, const char* kernel) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"op", op}, {"kernel", kernel}}));
    return unregister_kernel(op, kernel);
  });
}
