#include "backends/backend_common.h"

#include <cstring>

#include "base/message.h"
#include "base/row_access.h"
#include "linestate/ops/state_ops.h"
#include "ops/draft_tree/draft_path.h"
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
  return rest;
}

namespace {

void zero_fill(const TensorView& view, int dim, int64_t offset) {
  const int64_t bytes = dtype_bytes(view.dtype);
  if (dim + 1 == view.rank && view.stride[dim] == 1) {
    std::memset(static_cast<char*>(view.data) + offset * bytes, 0,
                static_cast<size_t>(view.shape[dim] * bytes));
    return;
  }
  for (int64_t i = 0; i < view.shape[dim]; ++i) {
    const int64_t at = offset + i * view.stride[dim];
    if (dim + 1 == view.rank) {
      std::memset(static_cast<char*>(view.data) + at * bytes, 0, static_cast<size_t>(bytes));
    } else {
      zero_fill(view, dim + 1, at);
    }
  }
}

}  // namespace

void zero_uncovered_tokens(const ForwardMetadata& metadata, const TensorView& out) {
  for (const Segment& segment : metadata.segments()) {
    if (segment.kind == RowKind::kPad) zero_fill(segment_tokens(out, segment), 0, 0);
  }
  zero_fill(out.slice(0, metadata.num_tokens(), metadata.token_capacity()), 0, 0);
}

void zero_unreal_tokens(const Segment& segment, int64_t num_slots, const TensorView& out) {
  for (int64_t n = 0; n < segment.row_end - segment.row_begin; ++n) {
    const RowInfo row = read_prefill_row(segment.rows, n, num_slots);
    zero_fill(out.slice(0, row.token_begin + row.valid, row.token_begin + row.tokens), 0, 0);
    if (segment.kind != RowKind::kVerify || !segment.parent.defined()) continue;
    const DraftTree tree(segment.parent, row);
    for (int64_t i = 0; i < tree.nodes(); ++i) {
      const int64_t t = row.token_begin + i;
      if (tree.inert(i)) zero_fill(out.slice(0, t, t + 1), 0, 0);
    }
  }
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

RowTensors empty_rows() {
  static constexpr int64_t kZero[1] = {0};
  RowTensors rows;
  rows.slot = ConstTensorView(kZero, DType::kI64, {0});
  rows.query_start_loc = ConstTensorView(kZero, DType::kI64, {1});
  rows.start = ConstTensorView(kZero, DType::kI64, {0});
  rows.num_valid = ConstTensorView(kZero, DType::kI64, {0});
  return rows;
}

}  // namespace linestate
