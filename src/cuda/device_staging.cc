#include "linestate/device_staging.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "cuda/device_common.h"
#ifdef LINESTATE_CUDA
#include "cuda/cuda_api.h"
#endif

namespace linestate {
namespace {

struct MadeGraph {
  void* handle = nullptr;
  int64_t num_nodes = 0;
};

}  // namespace

#ifdef LINESTATE_CUDA

namespace {

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }
cudaGraphExec_t graph_of(void* graph) { return static_cast<cudaGraphExec_t>(graph); }

Result<void*> allocate_pinned(Device device, int64_t bytes) {
  const CudaDeviceGuard guard(device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  void* data = nullptr;
  const cudaError_t error = cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable);
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return no_memory_of("of host memory for", device, bytes);
  }
  LINESTATE_RETURN_IF_ERROR(cuda_status("cudaHostAlloc", error));
  return data;
}

void free_pinned(Device device, void* data) {
  const CudaDeviceGuard guard(device.index);
  static_cast<void>(cudaFreeHost(data));
}

Status copy_async(Place dst, ConstPlace src, int64_t bytes, void* stream) {
  const CudaDeviceGuard guard(on_cpu(dst.device) ? src.device.index : dst.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const auto size = static_cast<size_t>(bytes);
  if (!on_cpu(dst.device) && !on_cpu(src.device) && dst.device.index != src.device.index) {
    LINESTATE_CUDA_CALL("cudaMemcpyPeerAsync",
                        cudaMemcpyPeerAsync(dst.data, dst.device.index, src.data, src.device.index,
                                            size, stream_of(stream)));
    return {};
  }
  LINESTATE_CUDA_CALL("cudaMemcpyAsync", cudaMemcpyAsync(dst.data, src.data, size,
                                                         cudaMemcpyDefault, stream_of(stream)));
  return {};
}

Result<void*> create_event(Device device) {
  const CudaDeviceGuard guard(device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  cudaEvent_t event = nullptr;
  LINESTATE_CUDA_CALL("cudaEventCreateWithFlags",
                      cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return static_cast<void*>(event);
}

void destroy_event(Device device, void* event) {
  const CudaDeviceGuard guard(device.index);
  static_cast<void>(cudaEventDestroy(event_of(event)));
}

Status record_event(Device device, void* event, void* stream) {
  const CudaDeviceGuard guard(device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  LINESTATE_CUDA_CALL("cudaEventRecord", cudaEventRecord(event_of(event), stream_of(stream)));
  return {};
}

Status wait_event(void* event) {
  LINESTATE_CUDA_CALL("cudaEventSynchronize", cudaEventSynchronize(event_of(event)));
  return {};
}

bool event_passed(void* event) {
  const bool pending = cudaEventQuery(event_of(event)) == cudaErrorNotReady;
  static_cast<void>(cudaGetLastError());
  return !pending;
}

Status begin_graph(Device device, void* stream) {
  const CudaDeviceGuard guard(device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  LINESTATE_CUDA_CALL("cudaStreamBeginCapture",
                      cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal));
  return {};
}

Result<MadeGraph> end_graph(Device device, void* stream) {
  const CudaDeviceGuard guard(device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  cudaGraph_t graph = nullptr;
  LINESTATE_CUDA_CALL("cudaStreamEndCapture", cudaStreamEndCapture(stream_of(stream), &graph));
  size_t nodes = 0;
  cudaGraphExec_t made = nullptr;
  cudaError_t error = cudaGraphGetNodes(graph, nullptr, &nodes);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&made, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  LINESTATE_RETURN_IF_ERROR(cuda_status("cudaGraphInstantiate", error));
  return MadeGraph{static_cast<void*>(made), static_cast<int64_t>(nodes)};
}

bool stream_captures(Device device, void* stream) {
  const CudaDeviceGuard guard(device.index);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream_of(stream), &status) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

Status launch_graph(Device device, void* graph, void* stream) {
  const CudaDeviceGuard guard(device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  LINESTATE_CUDA_CALL("cudaGraphLaunch", cudaGraphLaunch(graph_of(graph), stream_of(stream)));
  return {};
}

void destroy_graph(Device device, void* graph) {
  const CudaDeviceGuard guard(device.index);
  static_cast<void>(cudaGraphExecDestroy(graph_of(graph)));
}

}  // namespace

#else

namespace {

Result<void*> allocate_pinned(Device device, int64_t) { return no_such_device(device); }
void free_pinned(Device, void*) {}
Status copy_async(Place dst, ConstPlace src, int64_t, void*) {
  return no_such_device(on_cpu(dst.device) ? src.device : dst.device);
}
Result<void*> create_event(Device device) { return no_such_device(device); }
void destroy_event(Device, void*) {}
Status record_event(Device device, void*, void*) { return no_such_device(device); }
Status wait_event(void*) { return {}; }
bool event_passed(void*) { return true; }
Status begin_graph(Device device, void*) { return no_such_device(device); }
Result<MadeGraph> end_graph(Device device, void*) { return no_such_device(device); }
bool stream_captures(Device, void*) { return false; }
Status launch_graph(Device device, void*, void*) { return no_such_device(device); }
void destroy_graph(Device, void*) {}

}  // namespace

#endif

Result<PinnedMemory> PinnedMemory::allocate(Device device, int64_t bytes) try {
  LINESTATE_RETURN_IF_ERROR(check_bytes_on(device, bytes));
  PinnedMemory memory;
  memory.device_ = device;
  if (bytes == 0) return memory;
  if (on_cpu(device)) {
    memory.data_ = allocate_plain(bytes);
    if (memory.data_ == nullptr) return no_memory_of("of host memory for", device, bytes);
  } else {
    Result<void*> data = allocate_pinned(device, bytes);
    LINESTATE_RETURN_IF_ERROR(data.status());
    memory.data_ = data.value();
  }
  memory.bytes_ = bytes;
  return memory;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

PinnedMemory::~PinnedMemory() {
  if (data_ == nullptr) return;
  if (on_cpu(device_)) {
    std::free(data_);
  } else {
    free_pinned(device_, data_);
  }
}

Status copy_bytes_async(Place dst, ConstPlace src, int64_t bytes, void* stream) {
  LINESTATE_RETURN_IF_ERROR(check_bytes_on(dst.device, bytes));
  LINESTATE_RETURN_IF_ERROR(check_bytes_on(src.device, bytes));
  if (bytes == 0) return {};
  if (!on_cpu(dst.device) || !on_cpu(src.device)) return copy_async(dst, src, bytes, stream);
  std::memcpy(dst.data, src.data, static_cast<size_t>(bytes));
  return {};
}

Result<DeviceEvent> DeviceEvent::create(Device device) {
  LINESTATE_RETURN_IF_ERROR(check_bytes_on(device, 0));
  DeviceEvent event;
  event.device_ = device;
  if (on_cpu(device)) return event;
  Result<void*> handle = create_event(device);
  LINESTATE_RETURN_IF_ERROR(handle.status());
  event.handle_ = handle.value();
  return event;
}

DeviceEvent::~DeviceEvent() {
  if (handle_ != nullptr) destroy_event(device_, handle_);
}

Status DeviceEvent::record(void* stream) {
  return handle_ == nullptr ? Status() : record_event(device_, handle_, stream);
}

Status DeviceEvent::wait() const { return handle_ == nullptr ? Status() : wait_event(handle_); }

bool DeviceEvent::passed(void* handle) { return handle == nullptr || event_passed(handle); }

Result<StatusPoll> StatusPoll::create(Device device) {
  StatusPoll poll;
  poll.device_ = device;
  Result<PinnedMemory> staging = PinnedMemory::allocate(device, sizeof(DeviceStatus));
  LINESTATE_RETURN_IF_ERROR(staging.status());
  Result<DeviceEvent> copied = DeviceEvent::create(device);
  LINESTATE_RETURN_IF_ERROR(copied.status());
  poll.staging_ = std::move(staging).value();
  poll.copied_ = std::move(copied).value();
  return poll;
}

Status StatusPoll::start(const DeviceStatus* status, void* stream) {
  if (pending_) {
    return Status(StatusCode::kFailedPrecondition, "start: expected ready() before the next start");
  }
  LINESTATE_RETURN_IF_ERROR(
      copy_bytes_async({staging_.data(), {}}, {status, device_}, sizeof(DeviceStatus), stream));
  LINESTATE_RETURN_IF_ERROR(copied_.record(stream));
  pending_ = true;
  return {};
}

bool StatusPoll::ready(DeviceStatus& out) {
  if (!pending_ || !copied_.done()) return false;
  pending_ = false;
  return copy_bytes({&out, {}}, {staging_.data(), {}}, sizeof(DeviceStatus)).ok();
}

DeviceGraph::~DeviceGraph() {
  if (handle_ != nullptr) destroy_graph(device_, handle_);
}

Status DeviceGraph::begin_capture(Device device, void* stream) {
  if (on_cpu(device)) return Status(StatusCode::kUnsupported, "graphs: expected cuda, got cpu");
  LINESTATE_RETURN_IF_ERROR(check_bytes_on(device, 0));
  if (stream == nullptr) return invalid_argument("stream: expected one of its own, got default");
  return begin_graph(device, stream);
}

Result<DeviceGraph> DeviceGraph::end_capture(Device device, void* stream) {
  const Result<MadeGraph> made = end_graph(device, stream);
  LINESTATE_RETURN_IF_ERROR(made.status());
  DeviceGraph graph;
  graph.device_ = device;
  graph.handle_ = made->handle;
  graph.num_nodes_ = made->num_nodes;
  return graph;
}

bool DeviceGraph::capturing(Device device, void* stream) {
  return device.type == DeviceType::kCuda && stream_captures(device, stream);
}

Status DeviceGraph::launch(void* stream) const {
  if (handle_ == nullptr) {
    return Status(StatusCode::kFailedPrecondition, "launch: expected a captured graph, got none");
  }
  return launch_graph(device_, handle_, stream);
}

}  // namespace linestate
