#include "cuda/matrix_copy.h"

#include "linestate/device_staging.h"
#ifdef LINESTATE_CUDA
#include "cuda/cuda_api.h"
#endif

namespace linestate {
namespace {

Status copy_one_by_one(Place dst, int64_t dst_pitch, ConstPlace src, int64_t src_pitch,
                       int64_t run_bytes, int64_t runs, void* stream) {
  for (int64_t r = 0; r < runs; ++r) {
    LINESTATE_RETURN_IF_ERROR(copy_bytes_async(
        {static_cast<char*>(dst.data) + r * dst_pitch, dst.device},
        {static_cast<const char*>(src.data) + r * src_pitch, src.device}, run_bytes, stream));
  }
  return {};
}

}  // namespace

Status copy_runs_async(Place dst, int64_t dst_pitch, ConstPlace src, int64_t src_pitch,
                       int64_t run_bytes, int64_t runs, void* stream) {
  if (dst_pitch == run_bytes && src_pitch == run_bytes) {
    return copy_bytes_async(dst, src, run_bytes * runs, stream);
  }
#ifdef LINESTATE_CUDA
  const bool dst_on_gpu = dst.device.type == DeviceType::kCuda;
  const bool src_on_gpu = src.device.type == DeviceType::kCuda;
  const bool one_gpu = !dst_on_gpu || !src_on_gpu || dst.device == src.device;
  constexpr int64_t kMostPitch = (int64_t{1} << 31) - 1;  // cudaDevAttrMaxPitch everywhere
  if ((dst_on_gpu || src_on_gpu) && one_gpu && runs > 1 && dst_pitch <= kMostPitch &&
      src_pitch <= kMostPitch) {
    const CudaDeviceGuard guard(dst_on_gpu ? dst.device.index : src.device.index);
    LINESTATE_RETURN_IF_ERROR(guard.status());
    LINESTATE_CUDA_CALL("cudaMemcpy2DAsync",
                        cudaMemcpy2DAsync(dst.data, static_cast<size_t>(dst_pitch), src.data,
                                          static_cast<size_t>(src_pitch),
                                          static_cast<size_t>(run_bytes), static_cast<size_t>(runs),
                                          cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
    return {};
  }
#endif
  return copy_one_by_one(dst, dst_pitch, src, src_pitch, run_bytes, runs, stream);
}

}  // namespace linestate
