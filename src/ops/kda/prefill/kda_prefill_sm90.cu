// KDA prefill on Hopper with tensor cores; kda_prefill_sm90.cuh has the algorithm.
#include <array>

#include "base/int_math.h"
#include "base/message.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/kda/prefill/kda_prefill_kernels.h"
#include "ops/kda/prefill/kda_prefill_sm90_factor.cuh"
#include "ops/kda/prefill/kda_prefill_sm90_state.cuh"

namespace linestate {
namespace {

using kda_sm90::Shared;

constexpr unsigned kThreads = kda_sm90::kStateThreads + kda_sm90::kFactorThreads;

/// Zeros for tokens that are not valid, 16 bytes a thread.
[[maybe_unused]] __device__ void clear_out(const KdaDevice& p, const DeviceRow& row, int64_t j,
                                           int thread) {
  auto* out = static_cast<uint16_t*>(p.out.data) + j * p.out.stride[1] + thread % 16 * 8;
  for (int64_t i = row.valid + thread / 16; i < row.tokens; i += kda_sm90::kStateThreads / 16) {
    *reinterpret_cast<uint4*>(out + (row.token_begin + i) * p.out.stride[0]) =
        make_uint4(0, 0, 0, 0);
  }
}

[[maybe_unused]] __device__ void clear_state(const KdaDevice& p, const DeviceRow& row, int64_t n,
                                             int64_t j, int thread) {
  float S[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) S[i] = 0.0f;
  kda_sm90::store_state(p, kda_sm90::StateLane(thread), n, row.slot, j, S);
}

[[maybe_unused]] __device__ void start_shared(Shared& s) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < kda_sm90::kStages; ++i) {
      barrier_init(shared_address(&s.full[i]), kda_sm90::kFactorThreads);
      barrier_init(shared_address(&s.empty[i]), kda_sm90::kStateThreads);
    }
  }
  // What lies above the diagonals is never written again.
  for (int i = 0; i < kda_sm90::kStages; ++i) {
    auto* at = reinterpret_cast<uint4*>(s.stage[i].T);
    for (int piece = thread; piece < 2 * 8192 / 16; piece += static_cast<int>(kThreads)) {
      at[piece] = make_uint4(0, 0, 0, 0);
    }
  }
  fence_tiles();
  __syncthreads();
}

/// Task = (row, value head); row N is the tail behind all rows.
template <bool kHalf, bool kGateF32>
__global__ void __launch_bounds__(kThreads, 1)
    kda_prefill_sm90_kernel(const __grid_constant__ KdaDevice p, int64_t tasks) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  start_shared(s);
  uint32_t turn = 0;
  if (threadIdx.x < kda_sm90::kStateThreads) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 136;");
    const int thread = static_cast<int>(threadIdx.x);
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
      const int64_t n = task / p.HV;
      const int64_t j = task % p.HV;
      const DeviceRow row = read_prefill_row(p.rows, n, j == 0 && thread == 0 ? p.status : nullptr);
      clear_out(p, row, j, thread);
      if (row.valid > 0) {
        kda_sm90::state_row<kHalf>(p, row, n, j, thread, s, turn);
      } else if (row.live && row.fresh) {
        clear_state(p, row, n, j, thread);
      }
    }
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 120;");
    const int thread = static_cast<int>(threadIdx.x) - kda_sm90::kStateThreads;
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
      const DeviceRow row = read_prefill_row(p.rows, task / p.HV, nullptr);
      if (row.valid == 0) continue;
      kda_sm90::factor_row<kHalf, kGateF32>(p, row, task % p.HV, thread, s, turn);
    }
  }
#else
  __trap();  // refused before: other architectures have no such instructions
#endif
}

template <bool kHalf, bool kGateF32>
Status run(const KdaParams& params, const ExecContext& context) {
  const auto kernel = kda_prefill_sm90_kernel<kHalf, kGateF32>;
  LINESTATE_CUDA_CALL("kda_prefill_sm90 shared memory",
                      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(sizeof(Shared))));
  int processors = 0;
  LINESTATE_CUDA_CALL(
      "number of processors",
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, context.device.index));
  KdaDevice p = kda_device(params, context);
  int64_t tasks = (p.rows.count + 1) * p.HV;
  const int64_t blocks = min_i64(tasks, processors);
  if (blocks == 0) return {};
  void* arguments[] = {&p, &tasks};
  return cuda_status(
      "kda_prefill_sm90",
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid_of(blocks), dim3(kThreads),
                       arguments, sizeof(Shared), static_cast<cudaStream_t>(context.stream)));
}

/// Why 16-byte accesses cannot reach every row of the last dimension; empty when they can.
std::string refuse_view(const char* name, const ConstTensorView& x) {
  const int64_t each = 16 / dtype_bytes(x.dtype);
  bool fits = x.stride[static_cast<size_t>(x.rank) - 1] == 1 &&
              reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  for (size_t dim = 0; dim + 1 < static_cast<size_t>(x.rank); ++dim) {
    if (x.shape[dim] > 1 && x.stride[dim] % each != 0) fits = false;
  }
  return fits ? std::string() : concat(name, ": rows are not contiguous and 16-byte aligned");
}

}  // namespace

std::string refuse_kda_prefill_sm90(const KdaParams& params, const ExecContext& context) {
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, context.device.index) !=
          cudaSuccess ||
      major != 9) {
    return "needs a device of compute capability 9.0";
  }
  cudaFuncAttributes made{};
  if (cudaFuncGetAttributes(&made, reinterpret_cast<const void*>(
                                       kda_prefill_sm90_kernel<false, false>)) != cudaSuccess ||
      made.ptxVersion < 90) {
    return "this build has no code for sm_90a";
  }
  if (params.q.shape[2] != kda_sm90::kWidth || params.v.shape[2] != kda_sm90::kWidth) {
    return concat("K and V must be 128, got ", params.q.shape[2], " and ", params.v.shape[2]);
  }
  if (params.q.dtype == DType::kF32) return "q, k and v are f32, expected bf16 or f16";
  if (params.out.dtype != params.q.dtype) return "out differs from q in dtype";
  if (params.snapshots.defined()) return "takes no snapshots";
  const struct {
    const char* name;
    ConstTensorView view;
  } views[] = {{"q", params.q},       {"k", params.k},     {"v", params.v},
               {"gate", params.gate}, {"out", params.out}, {"state", params.state}};
  for (const auto& [name, view] : views) {
    if (std::string reason = refuse_view(name, view); !reason.empty()) return reason;
  }
  return {};
}

Status kda_prefill_sm90(const KdaParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  const bool half = params.q.dtype == DType::kF16;
  const bool wide = params.gate.dtype == DType::kF32;
  const auto start = half ? (wide ? run<true, true> : run<true, false>)
                          : (wide ? run<false, true> : run<false, false>);
  LINESTATE_RETURN_IF_ERROR(start(params, context));
  return raise_if_not_finite_cuda(context, params.out);
}

}  // namespace linestate
