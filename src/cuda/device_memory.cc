#include "linestate/device_memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "cuda/device_common.h"
#include "linestate/device_staging.h"
#ifdef LINESTATE_CUDA
#include "cuda/cuda_api.h"
#endif

namespace linestate {

#ifdef LINESTATE_CUDA

namespace {

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

Result<void*> cuda_allocate(Device device, int64_t bytes) {
  const CudaDeviceGuard guard(device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return no_memory_of("on", device, bytes);
  }
  LINESTATE_RETURN_IF_ERROR(cuda_status("cudaMalloc", error));
  return data;
}

void cuda_free(Device device, void* data) {
  const CudaDeviceGuard guard(device.index);
  static_cast<void>(cudaFree(data));
}

Status cuda_fill(Place dst, uint8_t value, int64_t bytes, void* stream) {
  const CudaDeviceGuard guard(dst.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  LINESTATE_CUDA_CALL(
      "cudaMemsetAsync",
      cudaMemsetAsync(dst.data, value, static_cast<size_t>(bytes), stream_of(stream)));
  return {};
}

Status cuda_synchronize(Device device, void* stream) {
  const CudaDeviceGuard guard(device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  LINESTATE_CUDA_CALL("cudaStreamSynchronize", cudaStreamSynchronize(stream_of(stream)));
  return {};
}

Result<void*> cuda_stream(Device device) {
  const CudaDeviceGuard guard(device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  cudaStream_t stream = nullptr;
  LINESTATE_CUDA_CALL("cudaStreamCreateWithFlags",
                      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return static_cast<void*>(stream);
}

void cuda_stream_destroy(Device device, void* stream) {
  const CudaDeviceGuard guard(device.index);
  static_cast<void>(cudaStreamDestroy(stream_of(stream)));
}

}  // namespace

#else

namespace {

Result<void*> cuda_allocate(Device device, int64_t) { return no_such_device(device); }
void cuda_free(Device, void*) {}
Status cuda_fill(Place dst, uint8_t, int64_t, void*) { return no_such_device(dst.device); }
Status cuda_synchronize(Device device, void*) { return no_such_device(device); }
Result<void*> cuda_stream(Device device) { return no_such_device(device); }
void cuda_stream_destroy(Device, void*) {}

}  // namespace

#endif

Result<DeviceMemory> DeviceMemory::allocate(Device device, int64_t bytes) try {
  LINESTATE_RETURN_IF_ERROR(check_bytes_on(device, bytes));
  DeviceMemory memory;
  memory.device_ = device;
  if (bytes == 0) return memory;
  if (on_cpu(device)) {
    memory.data_ = allocate_plain(bytes);
    if (memory.data_ == nullptr) return no_memory_of("on", device, bytes);
  } else {
    Result<void*> data = cuda_allocate(device, bytes);
    LINESTATE_RETURN_IF_ERROR(data.status());
    memory.data_ = data.value();
  }
  memory.bytes_ = bytes;
  return memory;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  if (on_cpu(device_)) {
    std::free(data_);
  } else {
    cuda_free(device_, data_);
  }
}

Status copy_bytes(Place dst, ConstPlace src, int64_t bytes, void* stream) {
  LINESTATE_RETURN_IF_ERROR(copy_bytes_async(dst, src, bytes, stream));
  // Host memory may be reused at once; device memory follows the stream.
  if (on_cpu(dst.device) == on_cpu(src.device)) return {};
  return synchronize(on_cpu(dst.device) ? src.device : dst.device, stream);
}

Status fill_bytes(Place dst, uint8_t value, int64_t bytes, void* stream) {
  LINESTATE_RETURN_IF_ERROR(check_bytes_on(dst.device, bytes));
  if (bytes == 0) return {};
  if (!on_cpu(dst.device)) return cuda_fill(dst, value, bytes, stream);
  std::memset(dst.data, value, static_cast<size_t>(bytes));
  return {};
}

Status synchronize(Device device, void* stream) {
  if (device.type == DeviceType::kExternal) return no_such_device(device);
  if (on_cpu(device)) return {};
  return cuda_synchronize(device, stream);
}

Result<DeviceStream> DeviceStream::create(Device device) {
  if (device.type == DeviceType::kExternal) return no_such_device(device);
  DeviceStream stream;
  stream.device_ = device;
  if (on_cpu(device)) return stream;
  Result<void*> handle = cuda_stream(device);
  LINESTATE_RETURN_IF_ERROR(handle.status());
  stream.handle_ = handle.value();
  return stream;
}

DeviceStream::~DeviceStream() {
  if (handle_ != nullptr) cuda_stream_destroy(device_, handle_);
}

Result<DeviceStatusBlock> DeviceStatusBlock::create(Device device) {
  Result<DeviceMemory> memory = DeviceMemory::allocate(device, sizeof(DeviceStatus));
  LINESTATE_RETURN_IF_ERROR(memory.status());
  DeviceStatusBlock block;
  block.memory_ = std::move(memory).value();
  if (on_cpu(device)) new (block.memory_.data()) DeviceStatus;
  LINESTATE_RETURN_IF_ERROR(block.reset());
  return block;
}

Status DeviceStatusBlock::read(DeviceStatus& out, void* stream) const {
  // Atomics cannot be copied as objects; on the CPU their bytes may race with nothing, because the
  // call that raises flags has returned.
  return copy_bytes({&out, {}}, {memory_.data(), memory_.device()}, sizeof(DeviceStatus), stream);
}

Status DeviceStatusBlock::reset(void* stream) {
  const DeviceStatus clean;
  return copy_bytes({memory_.data(), memory_.device()}, {&clean, {}}, sizeof(DeviceStatus), stream);
}

}  // namespace linestate
