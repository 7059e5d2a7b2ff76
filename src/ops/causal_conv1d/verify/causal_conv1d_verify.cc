#include "base/check.h"
#include "linestate/ops/kda_verify.h"
#include "ops/causal_conv1d/conv_check.h"
#include "ops/causal_conv1d/verify/causal_conv1d_verify_kernels.h"
#include "ops/common/snapshot_access.h"
#include "ops/draft_tree/draft_path.h"

namespace linestate {
namespace {

Status check(const CausalConv1dVerifyParams& params, const ExecContext& context) {
  const CausalConv1dParams& conv = params.conv;
  LINESTATE_RETURN_IF_ERROR(check_conv_tensors(conv, context));
  LINESTATE_RETURN_IF_ERROR(check_no_snapshots(conv.snapshots));
  LINESTATE_RETURN_IF_ERROR(
      check_prefill_rows(conv.rows, conv.x.shape[0], conv.window.shape[0], context));
  LINESTATE_RETURN_IF_ERROR(
      check_parents(params.parent, conv.rows, conv.x.shape[0], conv.window.shape[0], context));
  return check_no_overlap("out", conv.out, "parent", params.parent);
}

constexpr KernelRow<CausalConv1dVerifyParams> kRows[] = {
    {"cuda", DeviceType::kCuda,
     "f32 arithmetic, four channels a thread, W 2..4, portable from sm_80", nullptr, nullptr,
     LINESTATE_CUDA_RUN(causal_conv1d_verify_cuda)},
    {"cpu", DeviceType::kCpu, "f32 arithmetic, blocks of channels as vector lanes, W 2..4", nullptr,
     nullptr, causal_conv1d_verify_cpu},
    {"ref", DeviceType::kCpu, "float64 oracle, scalar, W 2..4", nullptr, nullptr,
     causal_conv1d_verify_ref},
};

constexpr OpTable<CausalConv1dVerifyParams> kTable{"causal_conv1d_verify", kRows, check};

}  // namespace

const OpTable<CausalConv1dVerifyParams>& causal_conv1d_verify_table() { return kTable; }

Status causal_conv1d_verify(const CausalConv1dVerifyParams& params, const ExecContext& context,
                            std::string_view kernel) {
  return run_op(kTable, params, context, kernel);
}

Result<int64_t> causal_conv1d_verify_workspace_bytes(const CausalConv1dVerifyParams& params,
                                                     const ExecContext& context,
                                                     std::string_view kernel) {
  return op_workspace_bytes(kTable, params, context, kernel);
}

KernelChoice explain_causal_conv1d_verify(const CausalConv1dVerifyParams& params,
                                          const ExecContext& context, std::string_view kernel) {
  return explain_op(kTable, params, context, kernel);
}

}  // namespace linestate
