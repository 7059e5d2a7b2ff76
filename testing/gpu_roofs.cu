// Work that does nothing but one thing: what a device reaches on it is the roof of everything else.
#include "testing/gpu_probe.h"

namespace linestate::testing {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;

// Sixteen bytes a thread and no loop: measured the fastest, 4270 GB/s of an H200's memory where
// four vectors a thread reach 3995.
__global__ void __launch_bounds__(kThreads) read_write(int4* data, int64_t vectors) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= vectors) return;
  int4 held = data[at];
  held.x ^= 1;
  data[at] = held;
}

constexpr int kChains = 8;
constexpr int kSteps = 4096;

__global__ void __launch_bounds__(kThreads) multiply_adds(float* out, float factor) {
  float sums[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) sums[i] = static_cast<float>(threadIdx.x + i);
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) sums[i] = fmaf(sums[i], factor, 0.5f);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += sums[i];
  if (sum == -1.0f) *out = sum;  // never; keeps the loop
}

__global__ void nothing() {}

Result<int> blocks(Device device) {
  int sms = 0;
  cudaError_t error = cudaSetDevice(device.index);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device.index);
  }
  if (error == cudaSuccess) return sms * kBlocksPerSm;
  return Status(StatusCode::kDevice, cudaGetErrorString(error));
}

Status launched() {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return Status(StatusCode::kDevice, std::string("launch: ") + cudaGetErrorString(error));
}

}  // namespace

Status queue_read_write(Device device, void* data, int64_t bytes, void* stream) {
  const Result<int> sms = blocks(device);  // makes the device current
  if (!sms.ok()) return sms.status();
  const int64_t vectors = bytes / static_cast<int64_t>(sizeof(int4));
  const auto grid = static_cast<unsigned>((vectors + kThreads - 1) / kThreads);
  read_write<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<int4*>(data),
                                                                       vectors);
  return launched();
}

Result<double> queue_multiply_adds(Device device, void* data, void* stream) {
  const Result<int> grid = blocks(device);
  if (!grid.ok()) return grid.status();
  multiply_adds<<<*grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<float*>(data), 0.999f);
  LINESTATE_RETURN_IF_ERROR(launched());
  return 2.0 * kChains * kSteps * kThreads * *grid;
}

Status queue_nothing(void* stream) {
  nothing<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>();
  return launched();
}

}  // namespace linestate::testing
