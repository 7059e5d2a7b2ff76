#include "base/check.h"
#include "linestate/ops/norm.h"
#include "ops/norm/group_rms_norm/group_rms_norm_kernels.h"
#include "ops/norm/norm_check.h"

namespace linestate {
namespace {

Status check_groups(const GroupRmsNormParams& params, const ExecContext& context) {
  const int64_t channels = params.x.shape[1];
  if (params.num_groups < 1 || channels % params.num_groups != 0) {
    return invalid_argument("num_groups: expected a divisor of ", channels, " channels, got ",
                            params.num_groups);
  }
  const int64_t local = channels / params.num_groups;
  if (!params.sum_sq.defined()) {
    if (params.group_channels == 0 || params.group_channels == local) return {};
    return invalid_argument("group_channels: expected ", local,
                            " (or 0) without sum_sq, because the sum here sees no more, got ",
                            params.group_channels);
  }
  if (params.group_channels != 0 && params.group_channels < local) {
    return invalid_argument("group_channels: expected at least this rank's ", local, ", got ",
                            params.group_channels);
  }
  LINESTATE_RETURN_IF_ERROR(
      check_shape("sum_sq", params.sum_sq, {params.x.shape[0], params.num_groups}));
  LINESTATE_RETURN_IF_ERROR(check_dtype("sum_sq", params.sum_sq, {DType::kF32}));
  return check_placement("sum_sq", params.sum_sq, context);
}

Status check(const GroupRmsNormParams& params, const ExecContext& context) {
  const ConstTensorView& x = params.x;
  LINESTATE_RETURN_IF_ERROR(check_norm_input("x", x, {kAnySize, kAnySize}, context));
  if (params.gate.defined()) {
    LINESTATE_RETURN_IF_ERROR(
        check_norm_input("gate", params.gate, {x.shape[0], x.shape[1]}, context));
  }
  LINESTATE_RETURN_IF_ERROR(check_norm_input("weight", params.weight, {x.shape[1]}, context));
  LINESTATE_RETURN_IF_ERROR(check_groups(params, context));
  LINESTATE_RETURN_IF_ERROR(check_eps(params.eps));
  LINESTATE_RETURN_IF_ERROR(check_norm_out(params.out, x, context));
  LINESTATE_RETURN_IF_ERROR(check_no_overlap("out", params.out, "gate", params.gate));
  LINESTATE_RETURN_IF_ERROR(check_no_overlap("out", params.out, "weight", params.weight));
  return check_no_overlap("out", params.out, "sum_sq", params.sum_sq);
}

constexpr KernelRow<GroupRmsNormParams> kRows[] = {
    {"cuda", DeviceType::kCuda, "a warp or a block a group, f32 arithmetic, portable from sm_80",
     nullptr, nullptr, LINESTATE_CUDA_RUN(group_rms_norm_cuda)},
    {"cpu", DeviceType::kCpu, "f32 arithmetic, sums in a fixed order", nullptr, nullptr,
     group_rms_norm_cpu},
    {"ref", DeviceType::kCpu, "float64 oracle, scalar", nullptr, nullptr, group_rms_norm_ref},
};

constexpr OpTable<GroupRmsNormParams> kTable{"group_rms_norm", kRows, check};

}  // namespace

const OpTable<GroupRmsNormParams>& group_rms_norm_table() { return kTable; }

Status group_rms_norm(const GroupRmsNormParams& params, const ExecContext& context,
                      std::string_view kernel) {
  return run_op(kTable, params, context, kernel);
}

KernelChoice explain_group_rms_norm(const GroupRmsNormParams& params, const ExecContext& context,
                                    std::string_view kernel) {
  return explain_op(kTable, params, context, kernel);
}

}  // namespace linestate
