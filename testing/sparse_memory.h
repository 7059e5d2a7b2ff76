// Address space without memory behind it until it is touched, for tests of 64-bit offsets.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace linestate::testing {

class SparseMemory {
 public:
  /// Reads as zero.
  explicit SparseMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  ~SparseMemory() { munmap(data_, bytes_); }

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace linestate::testing
