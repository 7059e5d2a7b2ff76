// Tensors are views: a pointer, a dtype, sizes and strides. Nothing here owns or copies memory.
// The fields are those of a DLPack tensor (byte_offset already added to the pointer), so an
// engine's tensor converts without a copy.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace linestate {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI32, kI64, kU8, kBool };

/// Bytes of one element.
int64_t dtype_bytes(DType dtype);
/// "f32", "bf16", ...
std::string_view dtype_name(DType dtype);
/// True for f32, bf16 and f16: the dtypes operators compute on.
bool is_compute_dtype(DType dtype);

enum class DeviceType : uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int32_t index = 0;  // ordinal among the devices of its type
  bool operator==(const Device&) const = default;
};

/// "cpu", "cuda:0".
std::string device_name(Device device);

inline constexpr int kMaxRank = 5;

/// Non-owning strided view. `Void` is `void` (may be written) or `const void` (input).
/// Strides count elements, may be any value for inputs, and are 64-bit everywhere.
template <typename Void>
struct BasicTensorView {
  Void* data = nullptr;  // first element
  DType dtype = DType::kF32;
  Device device{};
  int32_t rank = 0;
  std::array<int64_t, kMaxRank> shape{};   // elements, [0, rank) used
  std::array<int64_t, kMaxRank> stride{};  // elements, [0, rank) used

  BasicTensorView() = default;
  BasicTensorView(Void* data_in, DType dtype_in, std::initializer_list<int64_t> shape_in,
                  Device device_in = {});
  /// A writable view is also an input view.
  template <typename Other>
  requires(std::is_const_v<Void> && !std::is_const_v<Other>)
      BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT: implicit on purpose
      : data(other.data),
        dtype(other.dtype),
        device(other.device),
        rank(other.rank),
        shape(other.shape),
        stride(other.stride) {}

  /// False for an argument that was not given. A given tensor may have zero elements.
  bool defined() const { return rank > 0; }
  int64_t num_elements() const;
  /// True when the elements lie dense in row-major order (size-1 dims do not matter).
  bool contiguous() const;

  /// Elements [begin, end) of dimension `dim`. REQUIRES: 0 <= begin <= end <= shape[dim].
  BasicTensorView slice(int dim, int64_t begin, int64_t end) const;
  /// Dimension `dim` fixed at `index` and dropped. REQUIRES: 0 <= index < shape[dim], rank >= 2.
  BasicTensorView select(int dim, int64_t index) const;
  /// Dimension `dim` of size a*b becomes two dimensions [a, b]. REQUIRES: b divides the size.
  BasicTensorView split(int dim, int64_t inner) const;
  /// Dimensions `a` and `b` swapped (no data moves).
  BasicTensorView transpose(int a, int b) const;
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

extern template struct BasicTensorView<void>;
extern template struct BasicTensorView<const void>;

/// "bf16[8, 4, 128] strides (512, 128, 1) on cpu", for messages.
std::string describe(const ConstTensorView& tensor);

}  // namespace linestate
