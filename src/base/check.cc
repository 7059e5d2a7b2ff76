#include "base/check.h"

#include <cstdint>
#include <string>

namespace linestate {
namespace {

std::string shape_text(std::initializer_list<int64_t> shape) {
  std::string text = "[";
  for (int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += size == kAnySize ? std::string("any") : std::to_string(size);
  }
  return text + "]";
}

struct ByteRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool empty() const { return begin == end; }
};

ByteRange byte_range(const ConstTensorView& tensor) {
  if (tensor.data == nullptr || tensor.num_elements() == 0) return {};
  int64_t low = 0;
  int64_t high = 0;
  for (int dim = 0; dim < tensor.rank; ++dim) {
    const int64_t reach = (tensor.shape[dim] - 1) * tensor.stride[dim];
    (reach < 0 ? low : high) += reach;
  }
  const auto base = reinterpret_cast<uintptr_t>(tensor.data);
  const int64_t bytes = dtype_bytes(tensor.dtype);
  return {base + static_cast<uintptr_t>(low * bytes),
          base + static_cast<uintptr_t>((high + 1) * bytes)};
}

}  // namespace

Status check_shape(const char* name, const ConstTensorView& tensor,
                   std::initializer_list<int64_t> shape) {
  bool matches = tensor.rank == static_cast<int32_t>(shape.size());
  int dim = 0;
  for (int64_t size : shape) {
    matches = matches && (size == kAnySize || tensor.shape[dim] == size);
    ++dim;
  }
  for (dim = 0; matches && dim < tensor.rank; ++dim) matches = tensor.shape[dim] >= 0;
  if (matches) return {};
  return invalid_argument(name, ": expected shape ", shape_text(shape), ", got ", describe(tensor));
}

Status check_dtype(const char* name, const ConstTensorView& tensor,
                   std::initializer_list<DType> allowed) {
  std::string names;
  for (DType dtype : allowed) {
    if (tensor.dtype == dtype) return {};
    names += (names.empty() ? "" : " or ") + std::string(dtype_name(dtype));
  }
  return invalid_argument(name, ": expected dtype ", names, ", got ", dtype_name(tensor.dtype));
}

Status check_compute_dtype(const char* name, const ConstTensorView& tensor) {
  return check_dtype(name, tensor, {DType::kF32, DType::kBF16, DType::kF16});
}

Status check_placement(const char* name, const ConstTensorView& tensor,
                       const ExecContext& context) {
  if (!(tensor.device == context.device)) {
    return invalid_argument(name, ": expected device ", device_name(context.device), ", got ",
                            device_name(tensor.device));
  }
  if (tensor.data == nullptr && tensor.num_elements() > 0) {
    return invalid_argument(name, ": expected memory, got a null pointer for ", describe(tensor));
  }
  return {};
}

Status check_head_dim(const char* name, int64_t dim) {
  if (dim >= 16 && dim <= 256 && dim % 16 == 0) return {};
  return invalid_argument(name, ": expected a multiple of 16 from 16 to 256, got ", dim);
}

Status check_no_self_overlap(const char* name, const ConstTensorView& tensor) {
  if (tensor.num_elements() == 0) return {};
  // Sufficient and simple: ordered by stride, each dimension must step over the ones below it.
  int64_t reach = 0;
  std::array<bool, kMaxRank> used{};
  for (int step = 0; step < tensor.rank; ++step) {
    int next = -1;
    for (int dim = 0; dim < tensor.rank; ++dim) {
      if (used[dim]) continue;
      const int64_t stride = tensor.shape[dim] > 1 ? std::abs(tensor.stride[dim]) : 0;
      const int64_t best =
          next < 0 ? 0 : (tensor.shape[next] > 1 ? std::abs(tensor.stride[next]) : 0);
      if (next < 0 || stride < best) next = dim;
    }
    used[next] = true;
    if (tensor.shape[next] <= 1) continue;
    const int64_t stride = std::abs(tensor.stride[next]);
    if (stride <= reach) {
      return invalid_argument(name, ": expected strides that keep elements apart, got ",
                              describe(tensor));
    }
    reach += (tensor.shape[next] - 1) * stride;
  }
  return {};
}

Status check_no_overlap(const char* output_name, const ConstTensorView& output,
                        const char* input_name, const ConstTensorView& input) {
  const ByteRange a = byte_range(output);
  const ByteRange b = byte_range(input);
  if (a.empty() || b.empty() || a.end <= b.begin || b.end <= a.begin) return {};
  // Columns of one buffer interleave without touching: same row pitch, disjoint column ranges.
  if (output.rank >= 2 && input.rank >= 2 && output.stride[0] > 0 &&
      output.stride[0] * dtype_bytes(output.dtype) == input.stride[0] * dtype_bytes(input.dtype)) {
    const auto pitch = static_cast<uintptr_t>(output.stride[0] * dtype_bytes(output.dtype));
    const ByteRange row_a = byte_range(output.slice(0, 0, 1));
    const ByteRange row_b = byte_range(input.slice(0, 0, 1));
    const uintptr_t size_a = row_a.end - row_a.begin;
    const uintptr_t size_b = row_b.end - row_b.begin;
    // From a row of `output` to the next one of `input`, wherever the buffer itself begins.
    const uintptr_t gap = row_b.begin >= row_a.begin
                              ? (row_b.begin - row_a.begin) % pitch
                              : (pitch - (row_a.begin - row_b.begin) % pitch) % pitch;
    if (gap >= size_a && gap + size_b <= pitch) return {};
  }
  return invalid_argument(output_name, ": expected memory apart from ", input_name,
                          ", got overlapping ranges");
}

Status check_workspace(const ExecContext& context, int64_t bytes) {
  if (bytes == 0) return {};
  if (context.workspace.data == nullptr || context.workspace.bytes < bytes) {
    return invalid_argument("workspace: expected at least ", bytes, " bytes, got ",
                            context.workspace.data == nullptr ? 0 : context.workspace.bytes);
  }
  if (reinterpret_cast<uintptr_t>(context.workspace.data) % 64 != 0) {
    return invalid_argument("workspace: expected an address aligned to 64 bytes");
  }
  return {};
}

}  // namespace linestate
