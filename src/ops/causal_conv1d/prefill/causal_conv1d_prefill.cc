#include "base/check.h"
#include "linestate/ops/causal_conv1d.h"
#include "ops/causal_conv1d/conv_check.h"
#include "ops/causal_conv1d/prefill/causal_conv1d_prefill_kernels.h"
#include "ops/common/snapshot_access.h"

namespace linestate {
namespace {

Status check(const CausalConv1dParams& params, const ExecContext& context) {
  LINESTATE_RETURN_IF_ERROR(check_conv_tensors(params, context));
  const int64_t slots = params.window.shape[0];
  LINESTATE_RETURN_IF_ERROR(check_prefill_rows(params.rows, params.x.shape[0], slots, context));
  return check_snapshots(params.snapshots, params.rows, slots, context);
}

constexpr KernelRow<CausalConv1dParams> kRows[] = {
    {"cuda", DeviceType::kCuda,
     "f32 arithmetic, four channels a thread, W 2..4, portable from sm_80", nullptr, nullptr,
     LINESTATE_CUDA_RUN(causal_conv1d_prefill_cuda)},
    {"cpu", DeviceType::kCpu, "f32 arithmetic, blocks of channels as vector lanes, W 2..4", nullptr,
     nullptr, causal_conv1d_prefill_cpu},
    {"ref", DeviceType::kCpu, "float64 oracle, scalar, W 2..4", nullptr, nullptr,
     causal_conv1d_prefill_ref},
};

constexpr OpTable<CausalConv1dParams> kTable{"causal_conv1d_prefill", kRows, check};

}  // namespace

const OpTable<CausalConv1dParams>& causal_conv1d_prefill_table() { return kTable; }

Status causal_conv1d_prefill(const CausalConv1dParams& params, const ExecContext& context,
                             std::string_view kernel) {
  return run_op(kTable, params, context, kernel);
}

Result<int64_t> causal_conv1d_prefill_workspace_bytes(const CausalConv1dParams& params,
                                                      const ExecContext& context,
                                                      std::string_view kernel) {
  return op_workspace_bytes(kTable, params, context, kernel);
}

KernelChoice explain_causal_conv1d_prefill(const CausalConv1dParams& params,
                                           const ExecContext& context, std::string_view kernel) {
  return explain_op(kTable, params, context, kernel);
}

}  // namespace linestate
