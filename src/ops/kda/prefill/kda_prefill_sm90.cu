// KDA prefill on Hopper with tensor cores; kda_prefill_sm90.cuh has the algorithm.
#include <algorithm>
#include <array>

#include "base/int_math.h"
#include "base/message.h"
#include "cuda/finite_check.h"
#include "cuda/launch.cuh"
#include "ops/kda/prefill/kda_prefill_kernels.h"
#include "ops/kda/prefill/kda_prefill_sm90_factor.cuh"
#include "ops/kda/prefill/kda_prefill_sm90_plan.cuh"
#include "ops/kda/prefill/kda_prefill_sm90_state.cuh"

namespace linestate {
namespace {

using namespace kda_sm90;

/// Heads [first, first + count) of a call: what one pass has records for.
struct Heads {
  int32_t first;
  int32_t count;
  int32_t group;  // value heads a key head
};

/// Task = (chunk, value head), heads of a chunk next to each other.
template <bool kHalf, bool kGateF32>
__global__ void __launch_bounds__(kFactorThreads, kFactorBlocks)
    kda_factor_kernel(const __grid_constant__ KdaDevice p, Plan plan, Heads heads) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& s = *reinterpret_cast<FactorShared*>(raw);
  const int thread = static_cast<int>(threadIdx.x);
  const auto count = static_cast<uint32_t>(heads.count);
  const uint32_t tasks = static_cast<uint32_t>(*plan.total) * count;
  const auto set_work = [&](Work& work, uint32_t task) {
    work.more = task < tasks;
    if (!work.more) return;
    work.chunk = plan.chunks[task / count];
    work.j = heads.first + static_cast<int32_t>(task % count);
    work.head = work.j / heads.group;
  };
  if (blockIdx.x >= tasks) return;
  if (thread == 0) set_work(s.work[0], blockIdx.x);
  __syncthreads();
  RawGate<kGateF32> gate;
  const Inputs<kHalf, kGateF32> begin{p, s.work[0]};
  begin.fetch(thread, s);
  begin.read_gate(FactorLane(thread), gate);
  int turn = 0;
  for (uint32_t task = blockIdx.x;; task += gridDim.x, turn ^= 1) {
    if (thread == 0) set_work(s.work[turn ^ 1], task + gridDim.x);
    const Inputs<kHalf, kGateF32> in{p, s.work[turn]};
    const Inputs<kHalf, kGateF32> next{p, s.work[turn ^ 1]};
    factor_chunk(in, gate, next, thread, s);
    if (thread == 0) {
      copy_bulk_out(&plan.records[task], shared_address(&s.record),
                    static_cast<int>(sizeof(Record)));
    }
    if (!next.work.more) break;
    next.fetch(thread, s);
    next.read_gate(FactorLane(thread), gate);
  }
  if (thread == 0) copy_bulk_out_wait();
#else
  __trap();  // refused before: other architectures have no such instructions
#endif
}

/// Zeros for tokens that are not valid, 16 bytes a thread.
template <int kThreads>
__device__ void clear_out(const KdaDevice& p, const DeviceRow& row, int64_t j, int thread) {
  auto* out = static_cast<uint16_t*>(p.out.data) + j * p.out.stride[1] + thread % 16 * 8;
  for (int64_t i = row.valid + thread / 16; i < row.tokens; i += kThreads / 16) {
    *reinterpret_cast<uint4*>(out + (row.token_begin + i) * p.out.stride[0]) =
        make_uint4(0, 0, 0, 0);
  }
}

[[maybe_unused]] __device__ inline void clear_state(const KdaDevice& p, const StateLane& lane,
                                                    const DeviceRow& row, int64_t n, int64_t j) {
  float S[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) S[i] = 0.0f;
  store_state(p, lane, n, row.slot, j, S);
}

/// Row n without the chunks that the plan had no room for.
[[maybe_unused]] __device__ inline DeviceRow planned_row(const KdaDevice& p, const Plan& plan,
                                                         int64_t n, DeviceStatus* status) {
  DeviceRow row = read_prefill_row(p.rows, n, status);
  if (n < p.rows.count && plan.base[n] < 0) {
    raise_flag(status, DeviceFlag::kBadOffsets, n);
    row.live = false;
    row.valid = 0;
  }
  return row;
}

/// A pass of the state kernel: task = (row, value head, part of V); row N is the tail behind all.
template <int kGroups>
struct StateTask {
  static constexpr int kParts = 2 / kGroups;
  int64_t n;
  int64_t head;  // of the pass
  int half;

  __device__ StateTask(int64_t task, const Heads& heads)
      : n(task / kParts / heads.count),
        head(task / kParts % heads.count),
        half(static_cast<int>(task % kParts)) {}
};

template <int kGroups>
__device__ void feed_records(const KdaDevice& p, const Plan& plan, const Heads& heads,
                             int64_t tasks, StateShared<kGroups>& s) {
  uint32_t turn = 0;
  for (int64_t at = blockIdx.x; at < tasks; at += gridDim.x) {
    const StateTask<kGroups> task(at, heads);
    const DeviceRow row = planned_row(p, plan, task.n, nullptr);
    if (row.valid == 0) continue;
    const int64_t base = plan.base[task.n];
    const int32_t count = Chunks(row).count();
    for (int32_t chunk = 0; chunk < count; ++chunk, ++turn) {
      const uint32_t stage = turn % kStages;
      const uint32_t full = shared_address(&s.full[stage]);
      barrier_wait(shared_address(&s.empty[stage]), (turn / kStages & 1) ^ 1);
      barrier_expect(full, static_cast<int>(sizeof(Record)));
      copy_bulk_in(shared_address(&s.stage[stage].record),
                   &plan.records[(base + chunk) * heads.count + task.head],
                   static_cast<int>(sizeof(Record)), full);
    }
  }
}

template <bool kHalf, int kGroups>
__device__ void run_states(const KdaDevice& p, const Plan& plan, const Heads& heads, int64_t tasks,
                           StateShared<kGroups>& s) {
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t turn = 0;
  for (int64_t at = blockIdx.x; at < tasks; at += gridDim.x) {
    const StateTask<kGroups> task(at, heads);
    const int64_t j = heads.first + task.head;
    const bool reports = j == 0 && task.half == 0 && thread == 0;
    const DeviceRow row = planned_row(p, plan, task.n, reports ? p.status : nullptr);
    if (j == 0 && task.half == 0 && thread < 32 && task.n < p.rows.count) {
      report_snapshots(p.snapshots, p.rows, task.n, row, row.valid, p.status);
    }
    const StateLane lane(thread, task.half);
    if (task.half == 0) clear_out<128 * kGroups>(p, row, j, thread);
    if (row.valid > 0) {
      state_row<kHalf, kGroups>(p, row, task.n, j, lane, s, turn);
    } else if (row.live && row.fresh) {
      clear_state(p, lane, row, task.n, j);
    }
  }
}

template <bool kHalf, int kGroups>
__global__ void __launch_bounds__(128 * kGroups + 128, 1)
    kda_state_kernel(const __grid_constant__ KdaDevice p, Plan plan, Heads heads, int64_t tasks) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& s = *reinterpret_cast<StateShared<kGroups>*>(raw);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&s.full[i]), 1);
      barrier_init(shared_address(&s.empty[i]), 128 * kGroups);
    }
    fence_tiles();
  }
  __syncthreads();
  if (thread >= 128 * kGroups) {
    if (kGroups == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread == 128 * kGroups) feed_records<kGroups>(p, plan, heads, tasks, s);
  } else {
    if (kGroups == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    run_states<kHalf, kGroups>(p, plan, heads, tasks, s);
  }
#else
  __trap();
#endif
}

/// Rows with tokens have slots of their own, and at most T / 64 + 2 chunks a row between them: each
/// may begin and end inside one.
int64_t chunk_capacity(const KdaParams& params) {
  const int64_t T = params.q.shape[0];
  const int64_t rows = min_i64(min_i64(params.rows.slot.shape[0], params.state.shape[0]), T);
  return T / kChunk + 2 * rows;
}

/// Records beyond this are made in passes over some of the heads, down to one.
constexpr int64_t kEnoughRecords = int64_t{1} << 30;

int64_t head_bytes(const KdaParams& params) {
  return std::max(chunk_capacity(params), int64_t{1}) * int64_t{sizeof(Record)};
}

struct Layout {
  int64_t base;
  int64_t chunks;
  int64_t records;
  int64_t bytes;
};

Layout layout_of(const KdaParams& params) {
  const int64_t capacity = chunk_capacity(params);
  const auto after = [](int64_t at, int64_t bytes) { return round_up(at + bytes, 128); };
  Layout at{};
  at.base = 128;
  at.chunks = after(at.base, 4 * params.rows.slot.shape[0]);
  at.records = after(at.chunks, int64_t{sizeof(ChunkPlan)} * capacity);
  // Grows with every size, so that what serves a large call serves smaller ones.
  const int64_t head = head_bytes(params);
  at.bytes = at.records + min_i64(params.v.shape[1] * head, std::max(kEnoughRecords, head)) + 128;
  return at;
}

Plan plan_of(const KdaParams& params, const ExecContext& context) {
  const Layout at = layout_of(params);
  const auto address = reinterpret_cast<uintptr_t>(context.workspace.data);
  auto* from = static_cast<uint8_t*>(context.workspace.data) + (128 - address % 128) % 128;
  return {reinterpret_cast<int32_t*>(from), reinterpret_cast<int32_t*>(from + at.base),
          reinterpret_cast<ChunkPlan*>(from + at.chunks),
          reinterpret_cast<Record*>(from + at.records), chunk_capacity(params)};
}

/// Starts a kernel that may use most of a multiprocessor's shared memory.
template <typename... Formal, typename... Actual>
Status launch_wide(const char* name, void (*kernel)(Formal...), int64_t blocks, int threads,
                   size_t shared, const ExecContext& context, Actual... actual) {
  if (blocks == 0) return {};
  LINESTATE_CUDA_CALL(name, cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(shared)));
  const auto start = [&](Formal... formal) {
    void* arguments[] = {static_cast<void*>(&formal)...};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid_of(blocks),
                            dim3(static_cast<unsigned>(threads)), arguments, shared,
                            static_cast<cudaStream_t>(context.stream));
  };
  return cuda_status(name, start(actual...));
}

template <bool kHalf, int kGroups>
Status run_state(const KdaDevice& p, const Plan& plan, const Heads& heads, int64_t processors,
                 const ExecContext& context) {
  const int64_t tasks = (p.rows.count + 1) * heads.count * (2 / kGroups);
  return launch_wide("kda_prefill_sm90 state", kda_state_kernel<kHalf, kGroups>,
                     min_i64(tasks, processors), 128 * kGroups + 128, sizeof(StateShared<kGroups>),
                     context, p, plan, heads, tasks);
}

template <bool kHalf, bool kGateF32>
Status run(const KdaParams& params, const ExecContext& context) {
  int processors = 0;
  LINESTATE_CUDA_CALL(
      "number of processors",
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, context.device.index));
  const KdaDevice p = kda_device(params, context);
  const Plan plan = plan_of(params, context);
  if (p.HV == 0) return {};
  LINESTATE_RETURN_IF_ERROR(
      launch("kda_prefill_sm90 plan", kda_plan_kernel, 1, kPlanThreads, context, p, plan));
  const int64_t fits =
      (context.workspace.bytes - layout_of(params).records - 128) / head_bytes(params);
  const int64_t passes = ceil_div(p.HV, std::max(fits, int64_t{1}));
  const auto pass = static_cast<int32_t>(ceil_div(p.HV, passes));
  for (int32_t first = 0; first < p.HV; first += pass) {
    const Heads heads{first, std::min(pass, p.HV - first), p.HV / p.H};
    const int64_t blocks = min_i64(plan.capacity * heads.count, kFactorBlocks * processors);
    LINESTATE_RETURN_IF_ERROR(
        launch_wide("kda_prefill_sm90 factor", kda_factor_kernel<kHalf, kGateF32>, blocks,
                    kFactorThreads, sizeof(FactorShared), context, p, plan, heads));
    // Rows of S are independent: two blocks a head when there are processors for them.
    const bool few = 2 * p.rows.count * heads.count <= processors;
    const auto run = few ? run_state<kHalf, 1> : run_state<kHalf, 2>;
    LINESTATE_RETURN_IF_ERROR(run(p, plan, heads, processors, context));
  }
  if (p.snapshots.count > 0) return kda_advance_snapshots_cuda(params, context);
  return {};
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
  if (cudaFuncGetAttributes(
          &made, reinterpret_cast<const void*>(kda_factor_kernel<false, false>)) != cudaSuccess ||
      made.ptxVersion < 90) {
    return "this build has no code for sm_90a";
  }
  if (params.q.shape[2] != kWidth || params.v.shape[2] != kWidth) {
    return concat("K and V must be 128, got ", params.q.shape[2], " and ", params.v.shape[2]);
  }
  if (params.q.dtype == DType::kF32) return "q, k and v are f32, expected bf16 or f16";
  if (params.out.dtype != params.q.dtype) return "out differs from q in dtype";
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

int64_t kda_prefill_sm90_workspace(const KdaParams& params, const ExecContext&) {
  return layout_of(params).bytes;
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
