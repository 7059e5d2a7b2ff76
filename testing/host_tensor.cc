#include "testing/host_tensor.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "testing/half.h"

namespace linestate::testing {

void HostTensor::Free::operator()(void* memory) const { std::free(memory); }

HostTensor::HostTensor(DType dtype, std::vector<int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)) {
  const auto size = static_cast<size_t>(bytes());
  const size_t rounded = (size + 63) / 64 * 64 + 64;
  memory_.reset(static_cast<char*>(std::aligned_alloc(64, rounded)));
  if (memory_ == nullptr) throw std::bad_alloc();
  std::memset(memory_.get(), 0, rounded);
}

HostTensor HostTensor::clone() const {
  if (!defined()) return {};
  HostTensor copy(dtype_, shape_);
  std::memcpy(copy.data(), data(), static_cast<size_t>(bytes()));
  return copy;
}

int64_t HostTensor::num_elements() const {
  int64_t count = shape_.empty() ? 0 : 1;
  for (int64_t size : shape_) count *= size;
  return count;
}

namespace {

template <typename View, typename Void>
View make_view(Void* data, DType dtype, const std::vector<int64_t>& shape) {
  if (shape.size() > static_cast<size_t>(kMaxRank)) {
    throw std::invalid_argument("HostTensor: a view has at most rank 5");
  }
  View view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int32_t>(shape.size());
  int64_t pitch = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    view.shape[dim] = shape[dim];
    view.stride[dim] = pitch;
    pitch *= shape[dim];
  }
  return view;
}

}  // namespace

TensorView HostTensor::view() { return make_view<TensorView>(data(), dtype_, shape_); }
ConstTensorView HostTensor::view() const {
  return make_view<ConstTensorView>(data(), dtype_, shape_);
}

double HostTensor::at(int64_t index) const { return load_f64(data(), dtype_, index); }
void HostTensor::set(int64_t index, double value) { store_f64(data(), dtype_, index, value); }

namespace {

template <typename T>
HostTensor tensor_of(DType dtype, const std::vector<T>& values) {
  HostTensor out(dtype, {static_cast<int64_t>(values.size())});
  if (!values.empty()) std::memcpy(out.data(), values.data(), values.size() * sizeof(T));
  return out;
}

}  // namespace

HostTensor i32_tensor(const std::vector<int32_t>& values) { return tensor_of(DType::kI32, values); }
HostTensor i64_tensor(const std::vector<int64_t>& values) { return tensor_of(DType::kI64, values); }
HostTensor f32_tensor(const std::vector<float>& values) { return tensor_of(DType::kF32, values); }

HostTensor copy_of(const ConstTensorView& view) {
  HostTensor out(view.dtype, {view.shape.begin(), view.shape.begin() + view.rank});
  const auto size = static_cast<size_t>(dtype_bytes(view.dtype));
  auto* to = static_cast<char*>(out.data());
  const auto* from = static_cast<const char*>(view.data);
  for_each_offset(view, [&](int64_t offset) {
    std::memcpy(to, from + offset * static_cast<int64_t>(size), size);
    to += size;
  });
  return out;
}

HostTensor cast_of(const ConstTensorView& view, DType dtype) {
  if (dtype == view.dtype) return copy_of(view);
  HostTensor out(dtype, {view.shape.begin(), view.shape.begin() + view.rank});
  int64_t index = 0;
  for_each_offset(
      view, [&](int64_t offset) { out.set(index++, load_f64(view.data, view.dtype, offset)); });
  return out;
}

}  // namespace linestate::testing
