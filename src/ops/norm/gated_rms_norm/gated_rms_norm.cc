#include "base/check.h"
#include "linestate/ops/norm.h"
#include "ops/norm/gated_rms_norm/gated_rms_norm_kernels.h"
#include "ops/norm/norm_check.h"

namespace linestate {
namespace {

Status check(const GatedRmsNormParams& params, const ExecContext& context) {
  const ConstTensorView& x = params.x;
  LINESTATE_RETURN_IF_ERROR(check_norm_input("x", x, {kAnySize, kAnySize, kAnySize}, context));
  LINESTATE_RETURN_IF_ERROR(
      check_norm_input("z", params.z, {x.shape[0], x.shape[1], x.shape[2]}, context));
  LINESTATE_RETURN_IF_ERROR(check_norm_input("weight", params.weight, {x.shape[2]}, context));
  LINESTATE_RETURN_IF_ERROR(check_eps(params.eps));
  LINESTATE_RETURN_IF_ERROR(check_norm_out(params.out, x, context));
  LINESTATE_RETURN_IF_ERROR(check_no_overlap("out", params.out, "z", params.z));
  return check_no_overlap("out", params.out, "weight", params.weight);
}

constexpr KernelRow<GatedRmsNormParams> kRows[] = {
    {"cuda", DeviceType::kCuda, "a warp or a block a head, f32 arithmetic, portable from sm_80",
     nullptr, nullptr, LINESTATE_CUDA_RUN(gated_rms_norm_cuda)},
    {"cpu", DeviceType::kCpu, "f32 arithmetic, sums in a fixed order", nullptr, nullptr,
     gated_rms_norm_cpu},
    {"ref", DeviceType::kCpu, "float64 oracle, scalar", nullptr, nullptr, gated_rms_norm_ref},
};

constexpr OpTable<GatedRmsNormParams> kTable{"gated_rms_norm", kRows, check};

}  // namespace

const OpTable<GatedRmsNormParams>& gated_rms_norm_table() { return kTable; }

Status gated_rms_norm(const GatedRmsNormParams& params, const ExecContext& context,
                      std::string_view kernel) {
  return run_op(kTable, params, context, kernel);
}

KernelChoice explain_gated_rms_norm(const GatedRmsNormParams& params, const ExecContext& context,
                                    std::string_view kernel) {
  return explain_op(kTable, params, context, kernel);
}

}  // namespace linestate
