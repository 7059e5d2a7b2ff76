#include "linestate/tensor.h"

#include <sstream>
#include <utility>

namespace linestate {

int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
    case DType::kBool:
      return "bool";
  }
  return "unknown";
}

bool is_compute_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

const char* device_type_name(DeviceType type) {
  switch (type) {
    case DeviceType::kCpu:
      return "cpu";
    case DeviceType::kCuda:
      return "cuda";
    case DeviceType::kExternal:
      return "external";
  }
  return "unknown";
}

std::string device_name(Device device) {
  if (device.type == DeviceType::kCpu) return "cpu";
  return std::string(device_type_name(device.type)) + ":" + std::to_string(device.index);
}

template <typename Void>
BasicTensorView<Void>::BasicTensorView(Void* data_in, DType dtype_in,
                                       std::initializer_list<int64_t> shape_in, Device device_in)
    : data(data_in),
      dtype(dtype_in),
      device(device_in),
      rank(static_cast<int32_t>(shape_in.size())) {
  int dim = 0;
  for (int64_t size : shape_in) shape[dim++] = size;
  int64_t pitch = 1;
  for (dim = rank - 1; dim >= 0; --dim) {
    stride[dim] = pitch;
    pitch *= shape[dim];
  }
}

template <typename Void>
int64_t BasicTensorView<Void>::num_elements() const {
  if (rank == 0) return 0;
  int64_t count = 1;
  for (int dim = 0; dim < rank; ++dim) count *= shape[dim];
  return count;
}

template <typename Void>
bool BasicTensorView<Void>::contiguous() const {
  int64_t pitch = 1;
  for (int dim = rank - 1; dim >= 0; --dim) {
    if (shape[dim] != 1 && stride[dim] != pitch) return false;
    pitch *= shape[dim];
  }
  return true;
}

namespace {

template <typename Void>
Void* advance(const BasicTensorView<Void>& view, int64_t elements) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  if (view.data == nullptr) return nullptr;
  return static_cast<Byte*>(view.data) + elements * dtype_bytes(view.dtype);
}

}  // namespace

template <typename Void>
BasicTensorView<Void> BasicTensorView<Void>::slice(int dim, int64_t begin, int64_t end) const {
  BasicTensorView out = *this;
  out.data = advance(*this, begin * stride[dim]);
  out.shape[dim] = end - begin;
  return out;
}

template <typename Void>
BasicTensorView<Void> BasicTensorView<Void>::select(int dim, int64_t index) const {
  BasicTensorView out = *this;
  out.data = advance(*this, index * stride[dim]);
  for (int d = dim; d + 1 < rank; ++d) {
    out.shape[d] = shape[d + 1];
    out.stride[d] = stride[d + 1];
  }
  --out.rank;
  out.shape[out.rank] = 0;
  out.stride[out.rank] = 0;
  return out;
}

template <typename Void>
BasicTensorView<Void> BasicTensorView<Void>::split(int dim, int64_t inner) const {
  BasicTensorView out = *this;
  for (int d = rank; d > dim + 1; --d) {
    out.shape[d] = shape[d - 1];
    out.stride[d] = stride[d - 1];
  }
  out.shape[dim] = shape[dim] / inner;
  out.shape[dim + 1] = inner;
  out.stride[dim] = stride[dim] * inner;
  out.stride[dim + 1] = stride[dim];
  ++out.rank;
  return out;
}

template <typename Void>
BasicTensorView<Void> BasicTensorView<Void>::transpose(int a, int b) const {
  BasicTensorView out = *this;
  std::swap(out.shape[a], out.shape[b]);
  std::swap(out.stride[a], out.stride[b]);
  return out;
}

template struct BasicTensorView<void>;
template struct BasicTensorView<const void>;

std::string describe(const ConstTensorView& tensor) {
  if (!tensor.defined()) return "undefined";
  std::ostringstream text;
  text << dtype_name(tensor.dtype) << '[';
  for (int dim = 0; dim < tensor.rank; ++dim) text << (dim ? ", " : "") << tensor.shape[dim];
  text << "] strides (";
  for (int dim = 0; dim < tensor.rank; ++dim) text << (dim ? ", " : "") << tensor.stride[dim];
  text << ") on " << device_name(tensor.device);
  return text.str();
}

}  // namespace linestate
