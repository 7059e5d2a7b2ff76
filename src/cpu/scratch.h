// Scratch areas cut from the caller's workspace.
#pragma once

#include <cstdint>

#include "base/int_math.h"
#include "linestate/exec_context.h"

namespace linestate {

/// Hands out aligned pieces of one memory range. A default-made one only counts bytes, so the
/// same function can size a workspace and cut it.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(void* base) : base_(static_cast<char*>(base)) {}

  template <typename T>
  T* take(int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ = round_up(used_ + count * static_cast<int64_t>(sizeof(T)), 64);
    return piece;
  }
  int64_t bytes() const { return used_; }

 private:
  char* base_ = nullptr;
  int64_t used_ = 0;
};

/// Area of one thread when every thread gets `bytes_per_thread` (a multiple of 64).
inline Scratch thread_scratch(const ExecContext& context, int thread, int64_t bytes_per_thread) {
  return Scratch(static_cast<char*>(context.workspace.data) + thread * bytes_per_thread);
}

}  // namespace linestate
