// Lists the chunks of a call: how many each row has is known on the device only.
#pragma once

#include "ops/kda/prefill/kda_prefill_sm90.cuh"

namespace linestate::kda_sm90 {

constexpr int kPlanThreads = 1024;

/// Sum of `x` over the threads before this one; `total` over all.
__device__ inline int32_t scan_block(int32_t x, int32_t (&sums)[32], int32_t& total) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  int32_t sum = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  int32_t before = 0;
  total = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (i == warp) before = total;
    total += sums[i];
  }
  return before + sum - x;
}

/// One block. A row that finds no room, which takes offsets that break the contract, gets base
/// -1 and empty chunks.
__global__ void __launch_bounds__(kPlanThreads)
    kda_plan_kernel(const __grid_constant__ KdaDevice p, Plan plan) {
  __shared__ int32_t sums[32];
  int32_t done = 0;
  for (int64_t from = 0; from < p.rows.count; from += kPlanThreads) {
    const int64_t n = from + threadIdx.x;
    DeviceRow row;
    if (n < p.rows.count) row = read_prefill_row(p.rows, n, nullptr);
    Chunks chunks(row);
    int32_t count = row.valid > 0 ? chunks.count() : 0;
    int32_t total = 0;
    const int32_t base = done + scan_block(count, sums, total);
    const bool fits = base + count <= plan.capacity;
    if (n < p.rows.count) plan.base[n] = fits ? base : -1;
    if (!fits) {
      count = static_cast<int32_t>(max(int64_t{0}, min(int64_t{count}, plan.capacity - base)));
      chunks.lead = chunks.end = 0;
    }
    // A warp writes the chunks of its 32 rows, one row after the other.
    for (int i = 0; i < 32; ++i) {
      const int32_t many = __shfl_sync(kAllLanes, count, i);
      Chunks other = chunks;
      other.first = __shfl_sync(kAllLanes, chunks.first, i);
      other.lead = __shfl_sync(kAllLanes, chunks.lead, i);
      other.end = __shfl_sync(kAllLanes, chunks.end, i);
      const int32_t begin = __shfl_sync(kAllLanes, base, i);
      for (int32_t c = static_cast<int32_t>(threadIdx.x % 32); c < many; c += 32) {
        plan.chunks[begin + c] = other.at(c);
      }
    }
    done += total;
  }
  if (threadIdx.x == 0) *plan.total = static_cast<int32_t>(min(int64_t{done}, plan.capacity));
}

}  // namespace linestate::kda_sm90
