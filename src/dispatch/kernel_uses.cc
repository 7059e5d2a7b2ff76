#include "dispatch/kernel_uses.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>

#include "base/message.h"
#include "linestate/kernel_registry.h"

namespace linestate {
namespace {

struct Use {
  std::atomic<const void*> row{nullptr};
  std::atomic<const char*> op{nullptr};
  std::atomic<const char*> kernel{nullptr};
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> fallbacks{0};
  std::string last_reason;  // under the mutex
};

// Open addressing by row address. Far larger than all tables together; when it is ever full, new
// rows go uncounted rather than waiting.
constexpr size_t kEntries = 1024;
std::array<Use, kEntries> g_uses;

std::mutex g_mutex;  // reasons, logged set, callback: only fallbacks take it
std::set<std::string> g_logged;
LogCallback g_log = nullptr;
void* g_log_user = nullptr;

Use* find_use(const void* row, const char* op, const char* kernel) {
  size_t at = (reinterpret_cast<uintptr_t>(row) / 16) % kEntries;
  for (size_t probe = 0; probe < kEntries; ++probe, at = (at + 1) % kEntries) {
    Use& use = g_uses[at];
    const void* key = use.row.load(std::memory_order_acquire);
    if (key == row) return &use;
    if (key != nullptr) continue;
    if (use.row.compare_exchange_strong(key, row, std::memory_order_acq_rel)) {
      use.op.store(op, std::memory_order_release);
      use.kernel.store(kernel, std::memory_order_release);
      return &use;
    }
    if (key == row) return &use;
  }
  return nullptr;
}

}  // namespace

void count_kernel_use(const void* row, const char* op, const char* kernel) {
  Use* use = find_use(row, op, kernel);
  if (use != nullptr) use->calls.fetch_add(1, std::memory_order_relaxed);
}

// Without memory for the texts the fallback is counted and not logged.
void count_fallback(const void* row, const char* op, const char* kernel,
                    const std::string& reason) {
  Use* use = find_use(row, op, kernel);
  if (use == nullptr) return;
  use->fallbacks.fetch_add(1, std::memory_order_relaxed);
  LogCallback log = nullptr;
  void* user = nullptr;
  std::string text;
  try {
    text = concat(op, ": ", kernel, " runs as a fallback, ", reason);
    const std::lock_guard<std::mutex> lock(g_mutex);
    use->last_reason = reason;
    if (g_logged.insert(text).second) {
      log = g_log;
      user = g_log_user;
    }
  } catch (const std::bad_alloc&) {
    return;
  }
  if (log != nullptr) log(text.c_str(), user);
}

std::vector<KernelUse> kernel_uses() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  std::vector<KernelUse> uses;
  for (Use& use : g_uses) {
    const char* op = use.op.load(std::memory_order_acquire);
    const char* kernel = use.kernel.load(std::memory_order_acquire);
    const int64_t calls = use.calls.load(std::memory_order_relaxed);
    const int64_t fallbacks = use.fallbacks.load(std::memory_order_relaxed);
    if (op == nullptr || kernel == nullptr || (calls == 0 && fallbacks == 0)) continue;
    uses.push_back({op, kernel, calls, fallbacks, use.last_reason});
  }
  return uses;
}

void reset_kernel_uses() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  for (Use& use : g_uses) {
    use.calls.store(0, std::memory_order_relaxed);
    use.fallbacks.store(0, std::memory_order_relaxed);
    use.last_reason.clear();
  }
  g_logged.clear();
}

void set_log_callback(LogCallback callback, void* user) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_log = callback;
  g_log_user = user;
}

}  // namespace linestate
