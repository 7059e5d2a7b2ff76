#include "base/check.h"
#include "base/device_status.h"
#include "base/element.h"
#include "linestate/ops/state_ops.h"
#include "ops/state_ops/clear/state_clear_kernels.h"
#include "ops/state_ops/state_check.h"

namespace linestate {
namespace {

Status check_planes(const StateClearParams& params, const ExecContext& context) {
  for (size_t i = 0; i < params.planes.size(); ++i) {
    const ConstTensorView plane = params.planes[i];
    const std::string name = concat("planes[", i, "]");
    LINESTATE_RETURN_IF_ERROR(check_plane(name, plane, context));
    LINESTATE_RETURN_IF_ERROR(check_compute_dtype(name.c_str(), plane));
    LINESTATE_RETURN_IF_ERROR(check_no_self_overlap(name.c_str(), plane));
    if (plane.shape[0] != params.planes[0].shape[0]) {
      return invalid_argument(name, ": expected the ", params.planes[0].shape[0],
                              " slots of planes[0], got ", plane.shape[0]);
    }
  }
  return {};
}

Status check(const StateClearParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_planes(params, context));
  LINESTATE_RETURN_IF_ERROR(check_slot_ids("slots", params.slots, kAnySize, context));
  if (context.device.type != DeviceType::kCpu || params.planes.empty()) return {};
  for (int64_t i = 0; i < params.slots.shape[0]; ++i) {
    if (load_index(params.slots, i) < params.planes[0].shape[0]) continue;
    raise_flag(context.status, DeviceFlag::kSlotOutOfRange, static_cast<int32_t>(i));
  }
  return {};
}

constexpr KernelRow<StateClearParams> kRows[] = {
    {"cuda", DeviceType::kCuda, "any strides, sixteen planes a launch, portable from sm_80",
     nullptr, nullptr, LINESTATE_CUDA_RUN(state_clear_cuda)},
    {"cpu", DeviceType::kCpu, "any strides, in the longest runs the layout allows", nullptr,
     nullptr, state_clear_cpu},
    {"ref", DeviceType::kCpu, "element by element", nullptr, nullptr, state_clear_ref},
};

constexpr OpTable<StateClearParams> kTable{"state_clear", kRows, check};

}  // namespace

const OpTable<StateClearParams>& state_clear_table() { return kTable; }

Status state_clear(const StateClearParams& params, const ExecContext& context,
                   std::string_view kernel) {
  return run_op(kTable, params, context, kernel);
}

KernelChoice explain_state_clear(const StateClearParams& params, const ExecContext& context,
                                 std::string_view kernel) {
  return explain_op(kTable, params, context, kernel);
}

}  // namespace linestate
