// Memory, streams, events, graphs and status blocks.
#include <variant>

#include "capi/handles.h"
#include "capi/outgoing.h"
#include "linestate/capi/c_api_device.h"
#include "linestate/device_memory.h"
#include "linestate/device_staging.h"

using namespace linestate;        // NOLINT: this file is the wall between the two
using namespace linestate::capi;  // NOLINT

struct ls_memory {
  std::variant<DeviceMemory, PinnedMemory> memory;
};
struct ls_stream {
  DeviceStream stream;
};
struct ls_event {
  DeviceEvent event;
};
struct ls_graph {
  DeviceGraph graph;
};
struct ls_status_block {
  DeviceStatusBlock block;
};
struct ls_status_poll {
  StatusPoll poll;
};

namespace {

/// A handle around what `make(device)` returns.
template <typename Handle, typename Make>
ls_status make_on(int32_t device_type, int32_t device_index, Handle** out, const Make& make) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    *out = nullptr;
    const Result<Device> device = to_device(device_type, device_index);
    if (!device.ok()) return device.status();
    return put_handle(out, make(*device));
  });
}

/// `use` of a handle that is called `name`.
template <typename Handle, typename Use>
ls_status with(const char* name, Handle* handle, const Use& use) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{name, handle}}));
    return use(*handle);
  });
}

template <typename Memory>
Result<std::variant<DeviceMemory, PinnedMemory>> either(Result<Memory> made) {
  if (!made.ok()) return made.status();
  return std::variant<DeviceMemory, PinnedMemory>(std::move(made).value());
}

template <typename Copy>
ls_status copy_between(const ls_place* dst, const ls_place* src, int64_t bytes, const Copy& copy) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"dst", dst}, {"src", src}}));
    const Result<Device> to = to_device(dst->device_type, dst->device_index);
    if (!to.ok()) return to.status();
    const Result<Device> from = to_device(src->device_type, src->device_index);
    if (!from.ok()) return from.status();
    if (bytes > 0) {
      LINESTATE_RETURN_IF_ERROR(require({{"dst.data", dst->data}, {"src.data", src->data}}));
    }
    return copy(Place{dst->data, *to}, ConstPlace{src->data, *from});
  });
}

Status check_dense(const char* name, const TensorView& view) {
  if (view.rank == 0) return invalid_argument(name, ": expected a tensor, got none");
  if (view.contiguous()) return {};
  return invalid_argument(name, ": expected a dense tensor, got one with strides");
}

Status check_same(const TensorView& dst, const TensorView& src) {
  if (dst.dtype != src.dtype) {
    return invalid_argument("src: expected dtype ", dtype_name(dst.dtype), " of dst, got ",
                            dtype_name(src.dtype));
  }
  if (dst.rank != src.rank) {
    return invalid_argument("src: expected rank ", dst.rank, " of dst, got ", src.rank);
  }
  for (size_t dim = 0; dim < static_cast<size_t>(dst.rank); ++dim) {
    if (dst.shape[dim] != src.shape[dim]) {
      return invalid_argument("src: expected size ", dst.shape[dim], " of dst in dimension ", dim,
                              ", got ", src.shape[dim]);
    }
  }
  return {};
}

ls_status status_copy(const DeviceStatus& seen, ls_device_status* out) {
  static_assert(sizeof(DeviceStatus) == sizeof(ls_device_status));
  std::memcpy(out, static_cast<const void*>(&seen), sizeof(*out));
  return LS_OK;
}

}  // namespace

ls_status ls_memory_create(int32_t device_type, int32_t device_index, int64_t bytes,
                           ls_memory** out) {
  return make_on(device_type, device_index, out,
                 [&](Device device) { return either(DeviceMemory::allocate(device, bytes)); });
}

ls_status ls_memory_create_pinned(int32_t device_type, int32_t device_index, int64_t bytes,
                                  ls_memory** out) {
  return make_on(device_type, device_index, out,
                 [&](Device device) { return either(PinnedMemory::allocate(device, bytes)); });
}

void ls_memory_destroy(ls_memory* memory) { delete memory; }

ls_status ls_memory_data(const ls_memory* memory, void** data) {
  return with("memory", memory, [&](const ls_memory& handle) {
    return put("data", data,
               std::visit([](const auto& held) { return held.data(); }, handle.memory));
  });
}

ls_status ls_copy_bytes(const ls_place* dst, const ls_place* src, int64_t bytes, void* stream) {
  return copy_between(dst, src, bytes, [&](Place to, ConstPlace from) {
    return copy_bytes(to, from, bytes, stream);
  });
}

ls_status ls_copy_bytes_async(const ls_place* dst, const ls_place* src, int64_t bytes,
                              void* stream) {
  return copy_between(dst, src, bytes, [&](Place to, ConstPlace from) {
    return copy_bytes_async(to, from, bytes, stream);
  });
}

ls_status ls_copy_tensor(const ls_tensor* dst, const ls_tensor* src, void* stream) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"dst", dst}, {"src", src}}));
    TensorView to;
    TensorView from;
    LINESTATE_RETURN_IF_ERROR(to_view("dst", *dst, &to));
    LINESTATE_RETURN_IF_ERROR(to_view("src", *src, &from));
    LINESTATE_RETURN_IF_ERROR(check_dense("dst", to));
    LINESTATE_RETURN_IF_ERROR(check_dense("src", from));
    LINESTATE_RETURN_IF_ERROR(check_same(to, from));
    return copy_bytes({to.data, to.device}, {from.data, from.device},
                      to.num_elements() * dtype_bytes(to.dtype), stream);
  });
}

ls_status ls_fill_bytes(const ls_place* dst, uint8_t value, int64_t bytes, void* stream) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"dst", dst}}));
    const Result<Device> device = to_device(dst->device_type, dst->device_index);
    if (!device.ok()) return device.status();
    if (bytes > 0) LINESTATE_RETURN_IF_ERROR(require({{"dst.data", dst->data}}));
    return fill_bytes({dst->data, *device}, value, bytes, stream);
  });
}

ls_status ls_synchronize(int32_t device_type, int32_t device_index, void* stream) {
  return fenced([&]() -> Status {
    const Result<Device> device = to_device(device_type, device_index);
    if (!device.ok()) return device.status();
    return synchronize(*device, stream);
  });
}

ls_status ls_stream_create(int32_t device_type, int32_t device_index, ls_stream** out) {
  return make_on(device_type, device_index, out, DeviceStream::create);
}

void ls_stream_destroy(ls_stream* stream) { delete stream; }

ls_status ls_stream_handle(const ls_stream* stream, void** handle) {
  return with("stream", stream,
              [&](const ls_stream& from) { return put("handle", handle, from.stream.handle()); });
}

ls_status ls_event_create(int32_t device_type, int32_t device_index, ls_event** out) {
  return make_on(device_type, device_index, out, DeviceEvent::create);
}

void ls_event_destroy(ls_event* event) { delete event; }

ls_status ls_event_record(ls_event* event, void* stream) {
  return with("event", event, [&](ls_event& handle) { return handle.event.record(stream); });
}

ls_status ls_event_wait(const ls_event* event) {
  return with("event", event, [](const ls_event& handle) { return handle.event.wait(); });
}

ls_status ls_event_handle(const ls_event* event, void** handle) {
  return with("event", event,
              [&](const ls_event& from) { return put("handle", handle, from.event.handle()); });
}

bool ls_event_passed(void* handle) { return DeviceEvent::passed(handle); }

ls_status ls_graph_begin_capture(int32_t device_type, int32_t device_index, void* stream) {
  return fenced([&]() -> Status {
    const Result<Device> device = to_device(device_type, device_index);
    if (!device.ok()) return device.status();
    return DeviceGraph::begin_capture(*device, stream);
  });
}

ls_status ls_graph_end_capture(int32_t device_type, int32_t device_index, void* stream,
                               ls_graph** out) {
  return make_on(device_type, device_index, out,
                 [&](Device device) { return DeviceGraph::end_capture(device, stream); });
}

void ls_graph_destroy(ls_graph* graph) { delete graph; }

ls_status ls_graph_launch(const ls_graph* graph, void* stream) {
  return with("graph", graph, [&](const ls_graph& handle) { return handle.graph.launch(stream); });
}

ls_status ls_graph_num_nodes(const ls_graph* graph, int64_t* nodes) {
  return with("graph", graph, [&](const ls_graph& handle) {
    return put("nodes", nodes, handle.graph.num_nodes());
  });
}

ls_status ls_status_block_create(int32_t device_type, int32_t device_index, ls_status_block** out) {
  return make_on(device_type, device_index, out, DeviceStatusBlock::create);
}

void ls_status_block_destroy(ls_status_block* block) { delete block; }

ls_status ls_status_block_address(const ls_status_block* block, ls_device_status** address) {
  return with("block", block, [&](const ls_status_block& handle) {
    return put("address", address, reinterpret_cast<ls_device_status*>(handle.block.get()));
  });
}

ls_status ls_status_block_read(const ls_status_block* block, void* stream, ls_device_status* out) {
  return with("block", block, [&](const ls_status_block& handle) -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    DeviceStatus seen;
    LINESTATE_RETURN_IF_ERROR(handle.block.read(seen, stream));
    static_cast<void>(status_copy(seen, out));
    return {};
  });
}

ls_status ls_status_block_reset(ls_status_block* block, void* stream) {
  return with("block", block, [&](ls_status_block& handle) { return handle.block.reset(stream); });
}

ls_status ls_status_poll_create(int32_t device_type, int32_t device_index, ls_status_poll** out) {
  return make_on(device_type, device_index, out, StatusPoll::create);
}

void ls_status_poll_destroy(ls_status_poll* poll) { delete poll; }

ls_status ls_status_poll_start(ls_status_poll* poll, const ls_device_status* address,
                               void* stream) {
  return with("poll", poll, [&](ls_status_poll& handle) -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"address", address}}));
    return handle.poll.start(reinterpret_cast<const DeviceStatus*>(address), stream);
  });
}

ls_status ls_status_poll_ready(ls_status_poll* poll, ls_device_status* out, int32_t* ready) {
  return with("poll", poll, [&](ls_status_poll& handle) -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}, {"ready", ready}}));
    DeviceStatus seen;
    *ready = handle.poll.ready(seen) ? 1 : 0;
    if (*ready != 0) static_cast<void>(status_copy(seen, out));
    return {};
  });
}

ls_status ls_pool_device(const ls_pool* pool, int32_t* device_type, int32_t* device_index) {
  return with("pool", pool, [&](const ls_pool& handle) -> Status {
    LINESTATE_RETURN_IF_ERROR(
        require({{"device_type", device_type}, {"device_index", device_index}}));
    *device_type = static_cast<int32_t>(handle.pool.device().type);
    *device_index = handle.pool.device().index;
    return {};
  });
}

ls_status ls_pool_planes(const ls_pool* pool, ls_tensor* planes, size_t capacity, size_t* count) {
  return with("pool", pool, [&](const ls_pool& handle) -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"count", count}}));
    if (!handle.pool.memory_bound()) {
      return Status(StatusCode::kFailedPrecondition,
                    "pool: expected memory, got a pool whose memory is released");
    }
    if (capacity > 0) LINESTATE_RETURN_IF_ERROR(require({{"planes", planes}}));
    const auto all = handle.pool.planes();
    for (size_t i = 0; i < all.size() && i < capacity; ++i) planes[i] = to_c(all[i]);
    *count = all.size();
    return {};
  });
}
