#include "backends/backend_common.h"

#include "base/message.h"
#include "linestate/ops/state_ops.h"
#include "state/state_layout.h"

namespace linestate {

std::string_view pick_kernel(std::string_view call, std::string_view phase, std::string_view base) {
  for (std::string_view name : {call, phase, base}) {
    if (!name.empty()) return name;
  }
  return kAutoKernel;
}

const std::string& phase_option(const KernelOptions& options, RowKind kind) {
  if (kind == RowKind::kDecode) return options.decode;
  return kind == RowKind::kVerify ? options.verify : options.prefill;
}

TensorView record_tokens(const TensorView& tensor, int64_t tokens) {
  return tensor.defined() && tensor.shape[0] >= tokens ? tensor.slice(0, 0, tokens) : tensor;
}

namespace {

bool same_state(const LayerState& a, const LayerState& b) {
  return a.layout == b.layout && a.heads == b.heads && a.k_dim == b.k_dim && a.v_dim == b.v_dim &&
         a.conv_channels == b.conv_channels && a.conv_tail == b.conv_tail;
}

}  // namespace

Status find_layer(const ModelConfig& model, LayerKind kind, const StatePool& pool,
                  int64_t pool_layer, const LayerSpec** layer) {
  const auto count = static_cast<int64_t>(model.linear_layers.size());
  if (pool.num_layers() != count) {
    return invalid_argument("pool: expected ", count, " layers as in model ", model.name, ", got ",
                            pool.num_layers());
  }
  if (!pool.memory_bound()) {
    return Status(StatusCode::kFailedPrecondition, "pool: expected bound memory, it was released");
  }
  if (pool_layer < 0 || pool_layer >= count) {
    return invalid_argument("pool_layer: expected 0 to ", count - 1, ", got ", pool_layer);
  }
  const LayerSpec& found = model.linear_layers[static_cast<size_t>(pool_layer)];
  if (found.kind != kind) {
    return invalid_argument("pool_layer: expected a ", layer_kind_name(kind), " layer, got ",
                            pool_layer, " which is ", layer_kind_name(found.kind));
  }
  const LayerState want = layer_state(found);
  if (!same_state(want, pool.spec().layers[static_cast<size_t>(pool_layer)])) {
    return invalid_argument("pool: expected layer ", pool_layer, " to hold ", want.heads,
                            " heads of ", want.k_dim, " x ", want.v_dim, " and ",
                            want.conv_channels, " convolution channels, as the model says");
  }
  *layer = &found;
  return {};
}

ExecContext with_workspace_behind(const ExecContext& context, int64_t used) {
  ExecContext rest = context;
  rest.workspace.data = static_cast<char*>(context.workspace.data) + used;
  rest.workspace.bytes = context.workspace.bytes - used;
  rest.slots_checked = true;
  return rest;
}

KernelChoice refused_choice(const char* backend, const Status& status) {
  KernelChoice choice;
  choice.op = backend;
  choice.requested = std::string(kAutoKernel);
  choice.problem = status.message();
  return choice;
}

Status copy_flushed_snapshots(const Segment& segment, const TensorView& state,
                              const ExecContext& context) {
  if (!segment.snapshots.defined()) return {};
  const ConstTensorView source = state;
  StateCopyParams copy;
  copy.src = {&source, 1};
  copy.dst = {&state, 1};
  copy.src_slots = segment.snapshot_source;
  copy.dst_slots = segment.snapshots.slot;
  return state_copy(copy, context);
}

RowTensors empty_rows(Device device) {
  static constexpr int64_t kZero[1] = {0};
  RowTensors rows;
  rows.slot = ConstTensorView(kZero, DType::kI64, {0}, device);
  rows.query_start_loc = ConstTensorView(kZero, DType::kI64, {1}, device);
  rows.start = ConstTensorView(kZero, DType::kI64, {0}, device);
  rows.num_valid = ConstTensorView(kZero, DType::kI64, {0}, device);
  return rows;
}

Status check_metadata_device(const ForwardMetadata& metadata, const ExecContext& context) {
  if (metadata.device() == context.device) return {};
  return invalid_argument("metadata: expected one on ", device_name(context.device),
                          ", the context's device, got ", device_name(metadata.device()));
}

}  // namespace linestate
