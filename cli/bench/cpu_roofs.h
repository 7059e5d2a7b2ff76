// The two roofs of a CPU, measured: how fast it copies memory and how fast it multiplies and adds.
#pragma once

#include <cstdint>
#include <string>

namespace linestate::cli {

/// What time is measured by.
enum class BenchClock : uint8_t {
  kWall,
  kCpu,  // processor time of the calling thread: others' turns on the core do not count
};
/// Seconds since some point in the past.
double clock_seconds(BenchClock clock);

/// Bytes read plus bytes written per second when `threads` threads copy blocks that are together
/// four times `cache_bytes` (both sides), the best of a few passes. Stores that bypass the caches
/// count, as memcpy makes them: the roof is what the machine can do, not what a plain loop does.
double cpu_copy_bandwidth(int32_t threads, int64_t cache_bytes, double seconds, BenchClock clock);

/// f32 operations per second of independent fused multiply-adds in registers, two each, with the
/// widest vectors that this file knows on this CPU.
double cpu_multiply_add_peak(int32_t threads, double seconds, BenchClock clock);

/// What cpu_multiply_add_peak runs here: "avx512f", "avx2 fma" or "base".
std::string multiply_add_target();

}  // namespace linestate::cli
