// Memory that runs out on demand. Replaces the process's operator new and aligned_alloc, so it is
// included by exactly one file of a test.
#pragma once

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <utility>

#include "linestate/status.h"

namespace linestate::testing {

// Allocations until one fails, < 0 = none does. `after` says whether all later ones fail too.
inline std::atomic<int64_t> g_left{-1};
inline std::atomic<bool> g_after{false};
inline std::atomic<bool> g_fired{false};
inline std::atomic<int64_t> g_live{0};  // blocks of operator new

inline bool must_fail() {
  if (g_fired && g_after) return true;
  if (g_left < 0 || g_left-- > 0) return false;
  g_fired = true;
  return true;
}

inline void* allocate(size_t bytes, size_t alignment) noexcept {
  if (must_fail()) return nullptr;
  void* memory = memalign(alignment, bytes == 0 ? 1 : bytes);
  if (memory != nullptr) ++g_live;
  return memory;
}

inline void* allocate_or_throw(size_t bytes, size_t alignment = 16) {
  void* memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

inline void give_back(void* memory) noexcept {
  if (memory != nullptr) --g_live;
  std::free(memory);
}

enum class Failure { kOnce, kFromThenOn };

/// The n-th allocation of `attempt` fails, for n = 0, 1, ... until it needs no more than n. An
/// attempt that fails says kResourceExhausted; `unchanged` then looks whether anything is half
/// done. Returns how many attempts met a failure; `attempt` has succeeded in the end.
inline int64_t fail_everywhere(Failure failure, const std::function<Status()>& attempt,
                               const std::function<void()>& unchanged = {}) {
  constexpr int64_t kMost = 20000;
  for (int64_t n = 0; n < kMost; ++n) {
    g_fired = false;
    g_after = failure == Failure::kFromThenOn;
    g_left = n;
    Status status = attempt();
    g_left = -1;
    const bool fired = g_fired.exchange(false);
    if (!fired) {
      EXPECT_TRUE(status.ok()) << status.to_string();
      return n;
    }
    if (status.ok()) return n;  // it could do without: success under pressure
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << n << ": " << status.to_string();
    EXPECT_FALSE(status.message().empty()) << n;
    { const Status gone = std::move(status); }  // its text is a block too
    if (unchanged) unchanged();
    if (::testing::Test::HasFailure()) return n;
  }
  ADD_FAILURE() << "needs more than " << kMost << " allocations";
  return kMost;
}

/// Runs `body` without a byte to give.
inline void without_memory(const std::function<void()>& body) {
  g_fired = false;
  g_after = true;
  g_left = 0;
  body();
  g_left = -1;
  g_fired = false;
}

}  // namespace linestate::testing

// NOLINTBEGIN: these are the process's own
void* operator new(size_t bytes) { return linestate::testing::allocate_or_throw(bytes); }
void* operator new[](size_t bytes) { return linestate::testing::allocate_or_throw(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return linestate::testing::allocate_or_throw(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return linestate::testing::allocate_or_throw(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return linestate::testing::allocate(bytes, 16);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return linestate::testing::allocate(bytes, 16);
}
void operator delete(void* memory) noexcept { linestate::testing::give_back(memory); }
void operator delete[](void* memory) noexcept { linestate::testing::give_back(memory); }
void operator delete(void* memory, size_t) noexcept { linestate::testing::give_back(memory); }
void operator delete[](void* memory, size_t) noexcept { linestate::testing::give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept {
  linestate::testing::give_back(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  linestate::testing::give_back(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  linestate::testing::give_back(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  linestate::testing::give_back(memory);
}

// Pools, rings and records take their blocks from here and give them to std::free.
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return linestate::testing::must_fail() ? nullptr : memalign(alignment, bytes);
}
// NOLINTEND
