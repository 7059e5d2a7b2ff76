// Lightning prefill on Hopper with tensor cores; lightning_prefill_sm90.cuh has the algorithm. Rows
// that are cut take two kernels: the first makes what each segment but the last adds to the state,
// the second starts every segment from what the earlier ones add up to.
#include <array>

#include "base/int_math.h"
#include "base/message.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/lightning/prefill/lightning_prefill_kernels.h"
#include "ops/lightning/prefill/lightning_prefill_sm90_chunk.cuh"

namespace linestate {
namespace {

using lightning_sm90::Chunks;
using lightning_sm90::kHalf;
using lightning_sm90::kMainThreads;
using lightning_sm90::kSegmentChunks;
using lightning_sm90::kThreads;
using lightning_sm90::kTile;
using lightning_sm90::Lane;
using lightning_sm90::Powers;
using lightning_sm90::Shared;
using lightning_sm90::StateT;
using lightning_sm90::Work;

/// Chunks of k and v of the first kernel, all columns of V.
struct SummaryShared {
  struct {
    uint8_t k[2 * kTile];
    uint8_t v[2 * kTile];
  } stage[2];
  Powers powers;
};

[[maybe_unused]] __device__ void fetch_summary(const LightningDevice& p, const Chunks& chunks,
                                               int32_t chunk, int64_t h, SummaryShared& s) {
  auto& stage = s.stage[chunk % 2];
  const int thread = static_cast<int>(threadIdx.x);
  lightning_sm90::fetch_chunk<128, kThreads>(p.k, chunks, chunk, h, 0, thread, stage.k);
  lightning_sm90::fetch_chunk<128, kThreads>(p.v, chunks, chunk, h, 0, thread, stage.v);
}

/// What a segment adds to the state, a warpgroup a half of V. The row's first segment starts from
/// the slot, of which it leaves a copy: the pool is written before all segments have begun.
[[maybe_unused]] __device__ void summarize(const LightningDevice& p, const Work& work, int64_t h,
                                           float* states, SummaryShared& s) {
  const auto half = static_cast<int64_t>(threadIdx.x) / 128;
  const Lane lane(static_cast<int>(threadIdx.x) % 128);
  const Chunks chunks(work.row);
  const float slope = load_at(p.slopes, h);
  fetch_summary(p, chunks, work.begin, h, s);
  s.powers.fill(slope, static_cast<int>(threadIdx.x));
  const LightningDecay whole = lightning_decay(slope, lightning_sm90::kChunk);
  StateT S = {};
  if (work.segment == 0) {
    lightning_sm90::load_state(p, lane, work.row, h, half, S);
    lightning_sm90::keep_state(lightning_sm90::segment_state(p, states, work, 0, h, half), lane, S);
  }
  for (int32_t chunk = work.begin; chunk < work.end; ++chunk) {
    lightning_sm90::await_chunk<kThreads>();
    if (chunk + 1 < work.end) fetch_summary(p, chunks, chunk + 1, h, s);
    const int behind = chunks.behind(chunk);
    const auto lambda = lightning_sm90::chunk_decay(slope, whole, behind - chunks.begin(chunk));
    const auto& stage = s.stage[chunk % 2];
    lightning_sm90::advance_state(lane, s.powers, stage.k, stage.v + half * kTile, behind, lambda,
                                  S);
  }
  lightning_sm90::keep_state(
      lightning_sm90::segment_state(p, states, work, work.segment + 1, h, half), lane, S);
}

[[maybe_unused]] __device__ Work work_of(const LightningDevice& p, int64_t item,
                                         DeviceStatus* status) {
  if (item > p.rows.count) return lightning_sm90::marked_segment(p, item - p.rows.count - 1);
  const DeviceRow row = read_prefill_row(p.rows, item, status);
  return lightning_sm90::segment_work(p, row, item, 0);
}

/// Block = (item, head); items are the rows, one that is none, and the marks of later segments.
__global__ void __launch_bounds__(kThreads, 2)
    lightning_summary_kernel(const __grid_constant__ LightningDevice p, float* states) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t raw[];
  const Work work = work_of(p, blockIdx.x / p.H, nullptr);
  if (work.row.valid == 0 || work.segment + 1 >= work.segments) return;
  summarize(p, work, blockIdx.x % p.H, states, *reinterpret_cast<SummaryShared*>(raw));
#else
  __trap();  // refused before: other architectures have no such instructions
#endif
}

/// A block of the main kernel on its way through a segment.
struct Walk {
  const LightningDevice& p;
  Work work;
  Chunks chunks;
  int64_t h;
  int64_t half;
  Shared& s;

  __device__ lightning_sm90::Stage& stage(int32_t chunk) const {
    return s.stage[chunk % lightning_sm90::kStages];
  }
  /// By the warpgroups of the outputs: that of the state has enough to do.
  __device__ void fetch(int32_t chunk) const {
    if (chunk >= work.end) return;
    auto& to = stage(chunk);
    const int thread = static_cast<int>(threadIdx.x) - 128;
    lightning_sm90::fetch_chunk<128, kThreads>(p.q, chunks, chunk, h, 0, thread, to.q);
    lightning_sm90::fetch_chunk<128, kThreads>(p.k, chunks, chunk, h, 0, thread, to.k);
    lightning_sm90::fetch_chunk<64, kThreads>(p.v, chunks, chunk, h, kHalf * half, thread, to.v);
  }
  __device__ void await() const { lightning_sm90::await_chunk<kMainThreads>(); }
};

/// The state before a segment.
[[maybe_unused]] __device__ void begin_state(const LightningDevice& p, const Work& work,
                                             const Lane& lane, float slope, int64_t h, int64_t half,
                                             float* states, StateT& S) {
  if (work.segments == 1) {
    lightning_sm90::load_state(p, lane, work.row, h, half, S);
    return;
  }
  const auto part = [&](int32_t segment) {
    return lightning_sm90::segment_state(p, states, work, segment, h, half) + lane.thread;
  };
  const float* first = part(work.segment == 0 ? 0 : 1);
#pragma unroll
  for (int i = 0; i < 64; ++i) S[i] = first[128 * i];
  const LightningDecay lambda = lightning_decay(slope, kSegmentChunks * lightning_sm90::kChunk);
  for (int32_t segment = 2; segment <= work.segment; ++segment) {
    const float* more = part(segment);
    lightning_sm90::decay_state(lambda, S);
#pragma unroll
    for (int i = 0; i < 64; ++i) S[i] += more[128 * i];
  }
}

[[maybe_unused]] __device__ void run_state(const Walk& walk, float* states) {
  const Lane lane(static_cast<int>(threadIdx.x));
  const Work& work = walk.work;
  const float slope = load_at(walk.p.slopes, walk.h);
  const LightningDecay whole = lightning_decay(slope, lightning_sm90::kChunk);
  StateT S;
  begin_state(walk.p, work, lane, slope, walk.h, walk.half, states, S);
  for (int32_t chunk = work.begin; chunk < work.end; ++chunk) {
    walk.await();
    lightning_sm90::put_state(lane, S, walk.s.S);
    fence_tiles();
    arrive_some(2, 256);
    const int behind = walk.chunks.behind(chunk);
    const auto lambda =
        lightning_sm90::chunk_decay(slope, whole, behind - walk.chunks.begin(chunk));
    const auto& stage = walk.stage(chunk);
    lightning_sm90::advance_state(lane, walk.s.powers, stage.k, stage.v, behind, lambda, S);
  }
  walk.await();
  if (work.segment + 1 == work.segments) {
    lightning_sm90::store_state(walk.p, lane, work.n, work.row.slot, walk.h, walk.half, S);
  }
}

/// Chunks begin + group, + 2, ...: a period for each product, and as many periods as the state.
[[maybe_unused]] __device__ void run_outputs(const Walk& walk, int32_t group) {
  const Lane lane(static_cast<int>(threadIdx.x) % 128);
  const Work& work = walk.work;
  const int32_t first = work.begin + group;
  if (group == 1) {
    walk.await();
    walk.fetch(first);
  }
  for (int32_t chunk = first; chunk < work.end; chunk += 2) {
    lightning_sm90::Outputs out;
    walk.await();
    lightning_sm90::begin_outputs(
        lane, walk.stage(chunk), walk.s, walk.chunks.begin(chunk), [&] { walk.fetch(chunk + 1); },
        out);
    walk.await();
    lightning_sm90::end_outputs(
        walk.stage(chunk), [&] { walk.fetch(chunk + 2); }, out);
    lightning_sm90::store_out(walk.p, walk.chunks, chunk, walk.h, walk.half, lane, out.o);
  }
  if ((work.end - first) % 2 == 0) walk.await();
}

/// Zeros for tokens that are not valid.
[[maybe_unused]] __device__ void clear_out(const LightningDevice& p, const DeviceRow& row,
                                           int64_t h, int64_t half) {
  const float zeros[4] = {};
  const int column = static_cast<int>(threadIdx.x) % 16 * 4;
  for (int64_t i = row.valid + threadIdx.x / 16; i < row.tokens; i += kMainThreads / 16) {
    store_quad(p.out, p.out.offset(row.token_begin + i, h, kHalf * half + column), zeros);
  }
}

/// Block = (item, head, half of V); items as above, and the one that is no row is the tail.
__global__ void __launch_bounds__(kMainThreads, 1)
    lightning_prefill_sm90_kernel(const __grid_constant__ LightningDevice p, float* states) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const int64_t half = blockIdx.x % 2;
  const int64_t h = blockIdx.x / 2 % p.H;
  const int64_t item = blockIdx.x / 2 / p.H;
  const bool reports = h == 0 && half == 0 && threadIdx.x == 0;
  const Work work = work_of(p, item, reports ? p.status : nullptr);
  if (work.segment == 0) clear_out(p, work.row, h, half);
  if (work.row.valid == 0) {
    if (!work.row.live || !work.row.fresh || threadIdx.x >= 128) return;
    const StateT zeros = {};
    lightning_sm90::store_state(p, Lane(static_cast<int>(threadIdx.x)), work.n, work.row.slot, h,
                                half, zeros);
    return;
  }
  s.powers.fill(load_at(p.slopes, h), static_cast<int>(threadIdx.x));
  const Walk walk{p, work, Chunks(work.row), h, half, s};
  if (threadIdx.x < 128) {
    run_state(walk, states);
  } else {
    walk.fetch(work.begin);
    run_outputs(walk, static_cast<int32_t>(threadIdx.x) / 128 - 1);
  }
#else
  __trap();  // refused before: other architectures have no such instructions
#endif
}

/// Segments that are not the first of their row, at most.
int64_t later_segments(const LightningParams& params) {
  if (params.q.shape[1] > lightning_sm90::kSegmentHeads) return 0;
  return params.q.shape[0] / lightning_sm90::kMark;
}

Status run(const char* name, void (*kernel)(LightningDevice, float*), int64_t blocks,
           unsigned threads, size_t shared_bytes, LightningDevice p, float* states,
           const ExecContext& context) {
  LINESTATE_CUDA_CALL(name, cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(shared_bytes)));
  void* arguments[] = {&p, &states};
  return cuda_status(
      name, cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid_of(blocks), dim3(threads),
                             arguments, shared_bytes, static_cast<cudaStream_t>(context.stream)));
}

/// Why 16-byte accesses cannot reach every row of the last dimension; empty when they can.
std::string refuse_tokens(const char* name, const ConstTensorView& x) {
  const int64_t each = 16 / dtype_bytes(x.dtype);
  bool fits = x.stride[2] == 1 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  for (size_t dim = 0; dim < 2; ++dim) {
    if (x.shape[dim] > 1 && x.stride[dim] % each != 0) fits = false;
  }
  return fits ? std::string() : concat(name, ": rows are not contiguous and 16-byte aligned");
}

}  // namespace

std::string refuse_lightning_prefill_sm90(const LightningParams& params,
                                          const ExecContext& context) {
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, context.device.index) !=
          cudaSuccess ||
      major != 9) {
    return "needs a device of compute capability 9.0";
  }
  cudaFuncAttributes made{};
  if (cudaFuncGetAttributes(&made, reinterpret_cast<const void*>(lightning_prefill_sm90_kernel)) !=
          cudaSuccess ||
      made.ptxVersion < 90) {
    return "this build has no code for sm_90a";
  }
  if (params.q.shape[2] != lightning_sm90::kWidth) {
    return concat("K and V must be 128, got ", params.q.shape[2]);
  }
  if (params.q.dtype != DType::kBF16) {
    return concat("q, k and v must be bf16, got ", dtype_name(params.q.dtype));
  }
  const struct {
    const char* name;
    ConstTensorView view;
  } views[] = {{"q", params.q}, {"k", params.k}, {"v", params.v}, {"out", params.out}};
  for (const auto& [name, view] : views) {
    if (std::string reason = refuse_tokens(name, view); !reason.empty()) return reason;
  }
  const int64_t items = params.rows.slot.shape[0] + 1 + later_segments(params);
  if (items * params.q.shape[1] * 2 > 0x7fffffff) return "too many rows times heads for one grid";
  return {};
}

int64_t lightning_prefill_sm90_workspace_bytes(const LightningParams& params,
                                               const ExecContext& context) {
  static_cast<void>(context);
  const int64_t later = later_segments(params);
  if (later < 2) return 0;  // no row is long enough to be cut
  return (later + 1) * params.q.shape[1] * lightning_sm90::kWidth * lightning_sm90::kWidth *
         static_cast<int64_t>(sizeof(float));
}

Status lightning_prefill_sm90(const LightningParams& params, const ExecContext& context) {
  const CudaDeviceGuard guard(context.device.index);
  LINESTATE_RETURN_IF_ERROR(guard.status());
  // A snapshot must not change a bit of any output, so this kernel runs with and without; the
  // snapshots themselves come from the recurrence, which reads the states before they advance.
  if (params.snapshots.defined()) {
    LINESTATE_RETURN_IF_ERROR(lightning_prefill_snapshots_cuda(params, context));
  }
  const LightningDevice p = lightning_device(params, context);
  const bool cut = lightning_prefill_sm90_workspace_bytes(params, context) > 0;
  auto* states = cut ? static_cast<float*>(context.workspace.data) : nullptr;
  const int64_t items = p.rows.count + 1 + (cut ? later_segments(params) : 0);
  if (cut) {
    LINESTATE_RETURN_IF_ERROR(run("lightning_summary", lightning_summary_kernel, items * p.H,
                                  kThreads, sizeof(SummaryShared), p, states, context));
  }
  LINESTATE_RETURN_IF_ERROR(run("lightning_prefill_sm90", lightning_prefill_sm90_kernel,
                                items * p.H * 2, kMainThreads, sizeof(Shared), p, states, context));
  return raise_if_not_finite_cuda(context, params.out);
}

}  // namespace linestate
