// Kernel rows that stand in front of the "cpu" rows and run the "cuda" row on copies of the host's
// tensors, so that every test written for the CPU is a test of the GPU too. Each call runs three
// times: eagerly, and twice replayed from a graph that was captured while the memory held
// nonsense. All three must give the same bits, and nothing but outputs may change.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/message.h"
#include "cuda/cuda_api.h"
#include "dispatch/external_registry.h"
#include "dispatch/kernel_table.h"
#include "linestate/device_memory.h"
#include "testing/device_mirror.h"
#include "testing/params_views.h"

namespace linestate::testing {

inline constexpr Device kGpu{DeviceType::kCuda, 0};

/// LINESTATE_GPU_TESTS=eager: one run a call, for tools that make every launch slow.
inline bool only_eager() {
  static const char* mode = std::getenv("LINESTATE_GPU_TESTS");
  return mode != nullptr && std::string_view(mode) == "eager";
}

inline void* test_stream() {
  static Result<DeviceStream> stream = DeviceStream::create(kGpu);
  return stream.ok() ? stream->handle() : nullptr;
}

/// Adds what the device noticed to the host's block.
inline void merge_status(const DeviceStatus& seen, DeviceStatus& status) {
  for (int i = 0; i < kDeviceFlagCount; ++i) {
    const int32_t row = seen.first_row[i];
    const int32_t before = status.first_row[i];
    if (row >= 0 && (before < 0 || row < before)) status.first_row[i] = row;
  }
  if (seen.overflow_slot >= 0 && status.overflow_slot < 0) {
    status.overflow_slot = seen.overflow_slot.load();
    status.overflow_layer = seen.overflow_layer.load();
  }
  status.flags |= seen.flags.load();
}

template <typename Params>
class MirroredCall {
 public:
  MirroredCall(const OpTable<Params>& table, const Params& params, const ExecContext& context,
               const char* kernel = "cuda")
      : table_(table),
        host_context_(context),
        kernel_(kernel),
        params_(params),
        mirror_(kGpu, test_stream()) {}

  Status run() {
    LINESTATE_RETURN_IF_ERROR(prepare());
    LINESTATE_RETURN_IF_ERROR(enqueue());
    Result<std::vector<char>> eager = mirror_.download();
    LINESTATE_RETURN_IF_ERROR(eager.status());
    LINESTATE_RETURN_IF_ERROR(judge(*eager, "eagerly"));
    if (!only_eager()) LINESTATE_RETURN_IF_ERROR(replay(*eager));
    mirror_.write_back(*eager);
    if (host_context_.status == nullptr) return {};
    DeviceStatus seen;
    LINESTATE_RETURN_IF_ERROR(status_.read(seen, test_stream()));
    merge_status(seen, *host_context_.status);
    return {};
  }

 private:
  Status prepare() {
    for_each_view(params_, [&](auto& view) { mirror_.add(view, is_output(view)); });
    LINESTATE_RETURN_IF_ERROR(mirror_.upload());
    for_each_view(params_, [&](auto& view) { view = mirror_.map(view); });
    context_ = host_context_;
    context_.device = kGpu;
    context_.stream = test_stream();
    if (context_.status != nullptr) {
      Result<DeviceStatusBlock> status = DeviceStatusBlock::create(kGpu);
      LINESTATE_RETURN_IF_ERROR(status.status());
      status_ = std::move(status).value();
      context_.status = status_.get();
    }
    context_.workspace = {};
    const Result<int64_t> bytes = op_workspace_bytes(table_, params_.value, context_, kernel_);
    LINESTATE_RETURN_IF_ERROR(bytes.status());
    Result<DeviceMemory> workspace = DeviceMemory::allocate(kGpu, *bytes);
    LINESTATE_RETURN_IF_ERROR(workspace.status());
    workspace_ = std::move(workspace).value();
    context_.workspace = {workspace_.data(), *bytes};
    return fill_bytes({workspace_.data(), kGpu}, 0xff, *bytes, test_stream());
  }

  static bool is_output(const TensorView&) { return true; }
  static bool is_output(const ConstTensorView&) { return false; }

  Status enqueue() { return run_op(table_, params_.value, context_, kernel_); }

  Status judge(const std::vector<char>& bytes, const char* how) const {
    const std::string broken = mirror_.intact(bytes);
    if (broken.empty()) return {};
    return Status(StatusCode::kInternal, concat(table_.op, " run ", how, ": ", broken));
  }

  Status replay(const std::vector<char>& expected) {
    auto* stream = static_cast<cudaStream_t>(test_stream());
    LINESTATE_RETURN_IF_ERROR(mirror_.scramble());
    LINESTATE_CUDA_CALL("begin capture",
                        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const Status captured = enqueue();
    cudaGraph_t graph = nullptr;
    LINESTATE_CUDA_CALL("end capture", cudaStreamEndCapture(stream, &graph));
    LINESTATE_RETURN_IF_ERROR(captured);
    cudaGraphExec_t executable = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
    static_cast<void>(cudaGraphDestroy(graph));
    LINESTATE_CUDA_CALL("instantiate", error);
    Status result;
    for (int time = 0; time < 2 && result.ok(); ++time) result = replay_once(executable, expected);
    static_cast<void>(cudaGraphExecDestroy(executable));
    return result;
  }

  Status replay_once(cudaGraphExec_t executable, const std::vector<char>& expected) {
    LINESTATE_RETURN_IF_ERROR(mirror_.restore());
    LINESTATE_CUDA_CALL("launch graph",
                        cudaGraphLaunch(executable, static_cast<cudaStream_t>(test_stream())));
    Result<std::vector<char>> bytes = mirror_.download();
    LINESTATE_RETURN_IF_ERROR(bytes.status());
    LINESTATE_RETURN_IF_ERROR(judge(*bytes, "from a graph"));
    if (*bytes == expected) return {};
    return Status(StatusCode::kInternal, concat(table_.op, ": a replayed graph gave other bits"));
  }

  const OpTable<Params>& table_;
  const ExecContext& host_context_;
  const char* kernel_;
  OwnedParams<Params> params_;
  DeviceMirror mirror_;
  ExecContext context_;
  DeviceStatusBlock status_;
  DeviceMemory workspace_;
};

template <typename Params>
Status run_mirrored(const Params& params, const ExecContext& context, void* user) {
  return MirroredCall<Params>(*static_cast<const OpTable<Params>*>(user), params, context).run();
}

/// What the "cuda" row says: a problem that it refuses runs on the CPU's own row.
template <typename Params>
std::string refuse_mirrored(const Params& params, const ExecContext& context, void* user) {
  ExecContext on_gpu = context;
  on_gpu.device = kGpu;
  for (const auto& row : static_cast<const OpTable<Params>*>(user)->rows) {
    if (std::string_view(row.name) != "cuda" || row.refuse == nullptr) continue;
    return row.refuse(params, on_gpu);
  }
  return {};
}

/// Puts the table's "cuda" row, where there is one, in front of its "cpu" row.
template <typename Params>
void mirror_rows(const OpTable<Params>& table) {
  const bool has_cuda = std::any_of(table.rows.begin(), table.rows.end(), [](const auto& row) {
    return std::string_view(row.name) == "cuda" && row.run != nullptr;
  });
  if (!has_cuda) return;
  ExternalKernel<Params> kernel;
  kernel.name = "cpu";
  kernel.device = DeviceType::kCpu;
  kernel.summary = "the cuda row on copies of host tensors";
  kernel.refuse = refuse_mirrored<Params>;
  kernel.run = run_mirrored<Params>;
  kernel.user = const_cast<OpTable<Params>*>(&table);
  const Status status = ExternalRegistry<Params>::get().shadow(table.op, kernel);
  if (!status.ok()) std::abort();
}

}  // namespace linestate::testing
