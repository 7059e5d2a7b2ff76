// Memory and streams of a device.
#include "capi/reader.h"
#include "linestate/device_memory.h"

using namespace linestate;        // NOLINT: this file is the wall between the two
using namespace linestate::capi;  // NOLINT

struct ls_memory {
  DeviceMemory memory;
};

struct ls_stream {
  DeviceStream stream;
};

namespace {

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

}  // namespace

ls_status ls_memory_create(int32_t device_type, int32_t device_index, int64_t bytes,
                           ls_memory** out) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    *out = nullptr;
    const Result<Device> device = to_device(device_type, device_index);
    if (!device.ok()) return device.status();
    if (bytes < 0) return invalid_argument("bytes: expected at least 0, got ", bytes);
    return put_handle(out, DeviceMemory::allocate(*device, bytes));
  });
}

void ls_memory_destroy(ls_memory* memory) { delete memory; }

ls_status ls_memory_data(const ls_memory* memory, void** data) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"memory", memory}}));
    return put("data", data, memory->memory.data());
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

ls_status ls_stream_create(int32_t device_type, int32_t device_index, ls_stream** out) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    *out = nullptr;
    const Result<Device> device = to_device(device_type, device_index);
    if (!device.ok()) return device.status();
    return put_handle(out, DeviceStream::create(*device));
  });
}

void ls_stream_destroy(ls_stream* stream) { delete stream; }

ls_status ls_stream_handle(const ls_stream* stream, void** handle) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"stream", stream}}));
    return put("handle", handle, stream->stream.handle());
  });
}

ls_status ls_synchronize(int32_t device_type, int32_t device_index, void* stream) {
  return fenced([&]() -> Status {
    const Result<Device> device = to_device(device_type, device_index);
    if (!device.ok()) return device.status();
    return synchronize(*device, stream);
  });
}
