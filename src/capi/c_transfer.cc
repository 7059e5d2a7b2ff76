// Transfer descriptors, ring views, headers of slot packs.
#include <algorithm>

#include "capi/handles.h"
#include "capi/outgoing.h"
#include "linestate/state/slot_transfer.h"

using namespace linestate;        // NOLINT: this file is the wall between the two
using namespace linestate::capi;  // NOLINT

namespace {

ls_transfer_descriptor from_descriptor(const TransferDescriptor& from) {
  ls_transfer_descriptor to{};
  to.layer_id = from.layer_id;
  to.part = static_cast<int32_t>(from.part);
  to.dtype = static_cast<int32_t>(from.dtype);
  to.layout = static_cast<int32_t>(from.layout);
  to.order = static_cast<int32_t>(from.order);
  to.base = from.base;
  to.num_slots = from.num_slots;
  to.slot_stride_bytes = from.slot_stride_bytes;
  to.bytes_per_slot = from.bytes_per_slot;
  to.heads = from.heads;
  to.head_stride_bytes = from.head_stride_bytes;
  to.bytes_per_head = from.bytes_per_head;
  to.runs_per_head = from.runs_per_head;
  to.run_bytes = from.run_bytes;
  to.run_stride_bytes = from.run_stride_bytes;
  return to;
}

TransferDescriptor to_descriptor(Reader& reader, const char* name,
                                 const ls_transfer_descriptor* in) {
  const ls_transfer_descriptor from = reader.sized(name, in);
  TransferDescriptor to;
  to.layer_id = from.layer_id;
  reader.choice("part", from.part, TransferPart::kConvV, &to.part);
  reader.choice("dtype", from.dtype, DType::kBool, &to.dtype);
  reader.choice("layout", from.layout, StateLayout::kKV, &to.layout);
  reader.choice("order", from.order, TransferOrder::kFirstFastest, &to.order);
  to.bytes_per_head = from.bytes_per_head;
  to.run_bytes = from.run_bytes;
  return to;
}

ls_layer_state from_layer(const LayerState& from) {
  ls_layer_state to{};
  to.layer_id = from.layer_id;
  to.layout = static_cast<int32_t>(from.layout);
  to.heads = from.heads;
  to.k_dim = from.k_dim;
  to.v_dim = from.v_dim;
  to.conv_channels = from.conv_channels;
  to.conv_tail = from.conv_tail;
  return to;
}

Status check_rings(const ls_pool* handle) {
  LINESTATE_RETURN_IF_ERROR(require({{"pool", handle}}));
  if (!handle->pool.memory_bound()) {
    return Status(StatusCode::kFailedPrecondition,
                  "pool: expected memory, got a pool whose memory is released");
  }
  if (handle->pool.has_replay()) return {};
  return Status(StatusCode::kFailedPrecondition,
                "pool: expected one with replay rings, got one of ring length 1");
}

}  // namespace

ls_status ls_transfer_descriptors(const ls_pool* pool, ls_transfer_descriptor* descriptors,
                                  size_t capacity, size_t* count) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"pool", pool}, {"count", count}}));
    const Result<std::vector<TransferDescriptor>> made = transfer_descriptors(pool->pool);
    if (!made.ok()) return made.status();
    LINESTATE_RETURN_IF_ERROR(
        store_array("descriptors", *made, from_descriptor, descriptors, capacity));
    *count = made->size();
    return {};
  });
}

ls_status ls_check_transferable(const ls_transfer_descriptor* a, const ls_transfer_descriptor* b) {
  return fenced([&]() -> Status {
    Reader reader;
    const TransferDescriptor left = to_descriptor(reader, "a", a);
    const TransferDescriptor right = to_descriptor(reader, "b", b);
    LINESTATE_RETURN_IF_ERROR(reader.status());
    return check_transferable(left, right);
  });
}

ls_status ls_pool_replay_ring(const ls_pool* pool, int64_t index, ls_replay_ring* ring) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(check_rings(pool));
    const int64_t layers = pool->pool.num_layers();
    if (index < 0 || index >= layers) {
      return invalid_argument("index: expected 0 to ", layers - 1, ", got ", index);
    }
    return store("ring", to_c(pool->pool.replay_ring(index)), ring);
  });
}

ls_status ls_pool_replay_cursor(const ls_pool* pool, ls_tensor* cursor) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(check_rings(pool));
    return put("cursor", cursor, to_c(pool->pool.replay_cursor()));
  });
}

ls_status ls_read_slot_pack(const void* buffer, size_t size, ls_slot_pack_info* info,
                            ls_layer_state* layers, size_t capacity, size_t* count) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"buffer", buffer}, {"info", info}}));
    const Result<SlotPackInfo> read = read_slot_pack({static_cast<const std::byte*>(buffer), size});
    if (!read.ok()) return read.status();
    ls_slot_pack_info to{};
    to.position = read->position;
    to.total_bytes = read->total_bytes;
    to.scheme = static_cast<int32_t>(read->scheme);
    to.numerics_version = read->numerics_version;
    to.state_dtype = static_cast<int32_t>(read->spec.state_dtype);
    to.window_dtype = static_cast<int32_t>(read->spec.window_dtype);
    LINESTATE_RETURN_IF_ERROR(
        store_array("layers", read->spec.layers, from_layer, layers, capacity));
    LINESTATE_RETURN_IF_ERROR(store("info", to, info));
    if (count != nullptr) *count = read->spec.layers.size();
    return {};
  });
}
