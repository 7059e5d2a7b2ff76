#include "base/check.h"
#include "linestate/ops/norm.h"
#include "ops/norm/norm_check.h"
#include "ops/norm/rms_sum_sq/rms_sum_sq_kernels.h"

namespace linestate {
namespace {

Status check(const RmsSumSqParams& params, const ExecContext& context) {
  const ConstTensorView& x = params.x;
  LINESTATE_RETURN_IF_ERROR(check_norm_input("x", x, {kAnySize, kAnySize}, context));
  LINESTATE_RETURN_IF_ERROR(check_shape("sum_sq", params.sum_sq, {x.shape[0], kAnySize}));
  const int64_t num_groups = params.sum_sq.shape[1];
  if (num_groups < 1 || x.shape[1] % num_groups != 0) {
    return invalid_argument("sum_sq: expected a number of groups that divides ", x.shape[1],
                            " channels, got ", num_groups);
  }
  LINESTATE_RETURN_IF_ERROR(check_dtype("sum_sq", params.sum_sq, {DType::kF32}));
  LINESTATE_RETURN_IF_ERROR(check_placement("sum_sq", params.sum_sq, context));
  LINESTATE_RETURN_IF_ERROR(check_no_self_overlap("sum_sq", params.sum_sq));
  return check_no_overlap("sum_sq", params.sum_sq, "x", x);
}

constexpr KernelRow<RmsSumSqParams> kRows[] = {
    {"cuda", DeviceType::kCuda, "a warp or a block a group, f32 arithmetic, portable from sm_80",
     nullptr, nullptr, LINESTATE_CUDA_RUN(rms_sum_sq_cuda)},
    {"cpu", DeviceType::kCpu, "f32 arithmetic, sums in a fixed order", nullptr, nullptr,
     rms_sum_sq_cpu},
    {"ref", DeviceType::kCpu, "float64 oracle, scalar", nullptr, nullptr, rms_sum_sq_ref},
};

constexpr OpTable<RmsSumSqParams> kTable{"rms_sum_sq", kRows, check};

}  // namespace

const OpTable<RmsSumSqParams>& rms_sum_sq_table() { return kTable; }

Status rms_sum_sq(const RmsSumSqParams& params, const ExecContext& context,
                  std::string_view kernel) {
  return run_op(kTable, params, context, kernel);
}

KernelChoice explain_rms_sum_sq(const RmsSumSqParams& params, const ExecContext& context,
                                std::string_view kernel) {
  return explain_op(kTable, params, context, kernel);
}

}  // namespace linestate
