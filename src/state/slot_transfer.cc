#include "linestate/state/slot_transfer.h"

#include <string>

#include "base/message.h"

namespace linestate {
namespace {

// One part of a plane: `heads` matrices [rows, columns], strides in elements.
struct Matrices {
  int64_t heads;
  int64_t head_stride;
  int64_t rows;
  int64_t row_stride;
  int64_t columns;
  int64_t column_stride;
};

Status set_runs(const Matrices& part, TransferDescriptor& made) {
  const int64_t size = dtype_bytes(made.dtype);
  const bool last = part.column_stride == 1 || part.columns == 1;
  const bool first = part.row_stride == 1 || part.rows == 1;
  if (part.head_stride < 0 || part.row_stride < 0 || part.column_stride < 0 || (!last && !first)) {
    return Status(StatusCode::kUnsupported,
                  concat("layer ", made.layer_id, ", ", transfer_part_name(made.part),
                         ": expected one contiguous dimension of a head and no negative stride, "
                         "got strides ",
                         part.head_stride, ", ", part.row_stride, ", ", part.column_stride));
  }
  made.order = last ? TransferOrder::kLastFastest : TransferOrder::kFirstFastest;
  const int64_t inner = last ? part.columns : part.rows;
  const int64_t outer = last ? part.rows : part.columns;
  const int64_t outer_stride = last ? part.row_stride : part.column_stride;
  const bool one_run = outer == 1 || outer_stride == inner;
  made.heads = part.heads;
  made.head_stride_bytes = part.head_stride * size;
  made.runs_per_head = one_run ? 1 : outer;
  made.run_bytes = (one_run ? outer * inner : inner) * size;
  made.run_stride_bytes = one_run ? 0 : outer_stride * size;
  made.bytes_per_head = outer * inner * size;
  made.bytes_per_slot = made.heads * made.bytes_per_head;
  return {};
}

TransferDescriptor describe_plane(const LayerState& layer, const TensorView& plane,
                                  TransferPart part) {
  TransferDescriptor made;
  made.layer_id = layer.layer_id;
  made.part = part;
  made.dtype = plane.dtype;
  made.layout = layer.layout;
  made.device = plane.device;
  made.base = plane.data;
  made.num_slots = plane.shape[0];
  made.slot_stride_bytes = plane.stride[0] * dtype_bytes(plane.dtype);
  return made;
}

Status add_recurrent(const LayerState& layer, const TensorView& plane,
                     std::vector<TransferDescriptor>& all) {
  TransferDescriptor made = describe_plane(layer, plane, TransferPart::kRecurrent);
  LINESTATE_RETURN_IF_ERROR(set_runs({plane.shape[1], plane.stride[1], plane.shape[2],
                                      plane.stride[2], plane.shape[3], plane.stride[3]},
                                     made));
  all.push_back(made);
  return {};
}

Status add_window(const LayerState& layer, const TensorView& plane,
                  std::vector<TransferDescriptor>& all) {
  const int64_t qk_channels = layer.conv_channels - layer.heads * layer.v_dim;
  if (qk_channels < 2 * layer.k_dim || qk_channels % (2 * layer.k_dim) != 0) {
    return invalid_argument(
        "layer ", layer.layer_id, ": expected conv_channels = 2*H*K + HV*V for a whole H, got ",
        layer.conv_channels, " with K ", layer.k_dim, ", HV ", layer.heads, ", V ", layer.v_dim);
  }
  const int64_t key_heads = qk_channels / (2 * layer.k_dim);
  int64_t channel = 0;
  for (TransferPart part : {TransferPart::kConvQ, TransferPart::kConvK, TransferPart::kConvV}) {
    const bool value = part == TransferPart::kConvV;
    const int64_t heads = value ? layer.heads : key_heads;
    const int64_t width = value ? layer.v_dim : layer.k_dim;
    TransferDescriptor made = describe_plane(layer, plane, part);
    made.base =
        static_cast<char*>(plane.data) + channel * plane.stride[1] * dtype_bytes(plane.dtype);
    LINESTATE_RETURN_IF_ERROR(set_runs(
        {heads, width * plane.stride[1], width, plane.stride[1], layer.conv_tail, plane.stride[2]},
        made));
    all.push_back(made);
    channel += heads * width;
  }
  return {};
}

}  // namespace

std::string_view transfer_part_name(TransferPart part) {
  switch (part) {
    case TransferPart::kRecurrent:
      return "recurrent";
    case TransferPart::kConvQ:
      return "conv_q";
    case TransferPart::kConvK:
      return "conv_k";
    case TransferPart::kConvV:
      return "conv_v";
  }
  return "unknown";
}

Result<std::vector<TransferDescriptor>> transfer_descriptors(const StatePool& pool) try {
  if (!pool.memory_bound()) {
    return Status(StatusCode::kFailedPrecondition, "pool: expected bound memory, it was released");
  }
  std::vector<TransferDescriptor> all;
  for (int64_t i = 0; i < pool.num_layers(); ++i) {
    const LayerState& layer = pool.spec().layers[static_cast<size_t>(i)];
    LINESTATE_RETURN_IF_ERROR(add_recurrent(layer, pool.recurrent(i), all));
    if (!pool.conv_window(i).defined()) continue;
    LINESTATE_RETURN_IF_ERROR(add_window(layer, pool.conv_window(i), all));
  }
  return all;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status check_transferable(const TransferDescriptor& a, const TransferDescriptor& b) try {
  const struct {
    const char* name;
    int64_t a;
    int64_t b;
  } fields[] = {{"layer_id", a.layer_id, b.layer_id},
                {"part", static_cast<int64_t>(a.part), static_cast<int64_t>(b.part)},
                {"dtype", static_cast<int64_t>(a.dtype), static_cast<int64_t>(b.dtype)},
                {"layout", static_cast<int64_t>(a.layout), static_cast<int64_t>(b.layout)},
                {"order", static_cast<int64_t>(a.order), static_cast<int64_t>(b.order)},
                {"bytes_per_head", a.bytes_per_head, b.bytes_per_head},
                {"run_bytes", a.run_bytes, b.run_bytes}};
  for (const auto& field : fields) {
    if (field.a != field.b) {
      return invalid_argument("b.", field.name, ": expected ", field.a, " as in a, got ", field.b);
    }
  }
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace linestate
