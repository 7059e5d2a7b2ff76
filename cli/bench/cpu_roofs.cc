#include "cli/bench/cpu_roofs.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <memory>
#include <vector>

namespace linestate::cli {
namespace {

constexpr int64_t kFmaRounds = 4096;
constexpr int kChains = 12;  // more than latency x units of any CPU of today, fewer than registers

// Every vector register starts from this, the result is looked at, so nothing is optimised away.
struct FmaLoop {
  double operations = 0.0;  // of one call
  float (*run)(float seed) = nullptr;
};

typedef float Vector4 __attribute__((vector_size(16)));
typedef float Vector8 __attribute__((vector_size(32)));
typedef float Vector16 __attribute__((vector_size(64)));

// a <- a * m + c in kChains independent chains. Contraction is asked for here, and only here,
// because the roof is the machine's, whatever the library's own kernels fuse.
#define LINESTATE_FMA_LOOP(Vector)                                           \
  Vector a[kChains];                                                         \
  Vector m, c;                                                               \
  for (size_t i = 0; i < sizeof(Vector) / sizeof(float); ++i) {              \
    m[i] = 0.5f + seed;                                                      \
    c[i] = 0.5f;                                                             \
    for (int chain = 0; chain < kChains; ++chain) a[chain][i] = 0.25f;       \
  }                                                                          \
  for (int64_t round = 0; round < kFmaRounds; ++round) {                     \
    _Pragma("GCC unroll 12") for (int chain = 0; chain < kChains; ++chain) { \
      a[chain] = a[chain] * m + c;                                           \
    }                                                                        \
  }                                                                          \
  float sum = 0.0f;                                                          \
  for (int chain = 0; chain < kChains; ++chain) sum += a[chain][0];          \
  return sum;

#if defined(__clang__)
#define LINESTATE_CONTRACT _Pragma("clang fp contract(fast)")
#define LINESTATE_FAST_FMA
#else
#define LINESTATE_CONTRACT
#define LINESTATE_FAST_FMA __attribute__((optimize("fp-contract=fast")))
#endif

LINESTATE_FAST_FMA float fma_base(float seed){LINESTATE_CONTRACT LINESTATE_FMA_LOOP(Vector4)}
#if defined(__x86_64__)
LINESTATE_FAST_FMA __attribute__((target("avx2,fma"))) float fma_avx2(float seed){
    LINESTATE_CONTRACT LINESTATE_FMA_LOOP(Vector8)}

LINESTATE_FAST_FMA __attribute__((target("avx512f"))) float fma_avx512(float seed) {
  LINESTATE_CONTRACT
  LINESTATE_FMA_LOOP(Vector16)
}
#endif

constexpr double loop_operations(int lanes) {
  return 2.0 * lanes * kChains * static_cast<double>(kFmaRounds);
}

FmaLoop choose_loop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {loop_operations(16), fma_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {loop_operations(8), fma_avx2};
  }
#endif
  return {loop_operations(4), fma_base};
}

// Best rate of several passes, each by all threads at once.
template <typename Pass>
double best_rate(int32_t threads, double seconds, BenchClock clock, const Pass& pass) {
  double best = 0.0;
  const double until = clock_seconds(BenchClock::kWall) + seconds;
  do {
    double amount = 0.0;
    const double begin = clock_seconds(clock);
#pragma omp parallel for schedule(static, 1) num_threads(threads) reduction(+ : amount)
    for (int32_t thread = 0; thread < threads; ++thread) amount += pass(thread);
    best = std::max(best, amount / (clock_seconds(clock) - begin));
  } while (clock_seconds(BenchClock::kWall) < until);
  return best;
}

}  // namespace

double clock_seconds(BenchClock clock) {
  timespec now{};
  clock_gettime(clock == BenchClock::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double cpu_copy_bandwidth(int32_t threads, int64_t cache_bytes, double seconds, BenchClock clock) {
  constexpr int64_t kLeast = int64_t{8} << 20;
  const auto share = static_cast<size_t>(std::max(2 * cache_bytes / threads, kLeast));
  std::vector<std::unique_ptr<char[]>> from(static_cast<size_t>(threads));
  std::vector<std::unique_ptr<char[]>> to(static_cast<size_t>(threads));
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int32_t thread = 0; thread < threads; ++thread) {  // touched by the thread that copies it
    const auto i = static_cast<size_t>(thread);
    from[i].reset(new char[share]);
    to[i].reset(new char[share]);
    std::memset(from[i].get(), 1, share);
    std::memset(to[i].get(), 2, share);
  }
  return best_rate(threads, seconds, clock, [&](int32_t thread) {
    const auto i = static_cast<size_t>(thread);
    std::memcpy(to[i].get(), from[i].get(), share);
    return 2.0 * static_cast<double>(share);
  });
}

double cpu_multiply_add_peak(int32_t threads, double seconds, BenchClock clock) {
  const FmaLoop loop = choose_loop();
  std::vector<float> sink(static_cast<size_t>(threads) * 16);
  return best_rate(threads, seconds, clock, [&](int32_t thread) {
    constexpr int kCalls = 64;
    float& own = sink[static_cast<size_t>(thread) * 16];
    for (int call = 0; call < kCalls; ++call) own += loop.run(own * 0.0f);
    return kCalls * loop.operations;
  });
}

std::string multiply_add_target() {
  const FmaLoop loop = choose_loop();
#if defined(__x86_64__)
  if (loop.run == fma_avx512) return "avx512f";
  if (loop.run == fma_avx2) return "avx2 fma";
#endif
  return loop.run == fma_base ? "base" : "";
}

}  // namespace linestate::cli
