// A tensor that owns host memory, for tests, bench and the command line. Memory is 64-byte aligned.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "linestate/tensor.h"

namespace linestate::testing {

class HostTensor {
 public:
  HostTensor() = default;
  /// Zero-filled, contiguous.
  HostTensor(DType dtype, std::vector<int64_t> shape);
  HostTensor(HostTensor&&) noexcept = default;
  HostTensor& operator=(HostTensor&&) noexcept = default;

  HostTensor clone() const;

  bool defined() const { return !shape_.empty(); }
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t num_elements() const;
  int64_t bytes() const { return num_elements() * dtype_bytes(dtype_); }
  void* data() { return memory_.get(); }
  const void* data() const { return memory_.get(); }

  /// Throws std::invalid_argument for a rank above kMaxRank (a file may hold such a tensor).
  TensorView view();
  ConstTensorView view() const;
  operator TensorView() { return view(); }             // NOLINT: implicit on purpose
  operator ConstTensorView() const { return view(); }  // NOLINT: implicit on purpose

  /// Element by flat index, widened or rounded.
  double at(int64_t index) const;
  void set(int64_t index, double value);

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  DType dtype_ = DType::kF32;
  std::vector<int64_t> shape_;
  std::unique_ptr<char, Free> memory_;
};

/// Index tensors from a list.
HostTensor i32_tensor(const std::vector<int32_t>& values);
HostTensor i64_tensor(const std::vector<int64_t>& values);
HostTensor f32_tensor(const std::vector<float>& values);

/// Deep copy of any view into contiguous memory, optionally of another dtype.
HostTensor copy_of(const ConstTensorView& view);
HostTensor cast_of(const ConstTensorView& view, DType dtype);

/// Calls visit(offset in elements) for every element in row-major order.
template <typename Visit>
void for_each_offset(const ConstTensorView& view, Visit&& visit) {
  if (view.rank == 0 || view.num_elements() == 0) return;
  std::vector<int64_t> index(static_cast<size_t>(view.rank), 0);
  int64_t offset = 0;
  while (true) {
    visit(offset);
    int dim = view.rank - 1;
    for (; dim >= 0; --dim) {
      const auto d = static_cast<size_t>(dim);
      offset += view.stride[d];
      if (++index[d] < view.shape[d]) break;
      offset -= view.stride[d] * view.shape[d];
      index[d] = 0;
    }
    if (dim < 0) return;
  }
}

}  // namespace linestate::testing
