// Versions, lists, log, tensors and the device status block.
#include <algorithm>

#include "capi/reader.h"
#include "linestate/c_api.h"

using namespace linestate;        // NOLINT: this file is the wall between the two
using namespace linestate::capi;  // NOLINT

namespace {

// Tabs and line ends would break the lists.
std::string field(std::string_view text) {
  std::string clean(text);
  std::replace_if(
      clean.begin(), clean.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return clean;
}

template <typename Entries, typename Line>
ls_status put_list(const Entries& entries, char* buffer, size_t size, size_t* needed,
                   const Line& line) {
  return fenced([&] {
    std::string text;
    for (const auto& entry : entries()) text += line(entry) + '\n';
    return put_text(text, buffer, size, needed);
  });
}

Status check_block(const ls_device_status* block) {
  LINESTATE_RETURN_IF_ERROR(require({{"block", block}}));
  if (reinterpret_cast<uintptr_t>(block) % alignof(DeviceStatus) == 0) return {};
  return invalid_argument("block: expected an address aligned to ", alignof(DeviceStatus),
                          " bytes, got one that is not");
}

const DeviceStatus& block_of(const ls_device_status* block) {
  return *reinterpret_cast<const DeviceStatus*>(block);
}

}  // namespace

uint32_t ls_abi_version(void) { return LS_ABI_VERSION; }
const char* ls_version(void) { return version_string(); }
const char* ls_build_description(void) { return build_description(); }
int32_t ls_numerics_version(void) { return kNumericsVersion; }

const char* ls_status_name(int32_t status) {
  if (status < LS_OK || status > LS_INTERNAL) return "unknown";
  return status_code_name(static_cast<StatusCode>(status)).data();
}

void ls_init(void* sized_struct, size_t size) {
  if (sized_struct == nullptr || size < sizeof(size)) return;
  std::memset(sized_struct, 0, size);
  std::memcpy(sized_struct, &size, sizeof(size));
}

ls_tensor ls_dense(void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
  ls_tensor tensor{};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = shape == nullptr ? -1 : rank;
  uint64_t stride = 1;  // may wrap: such a tensor is refused when it is used
  for (int32_t dim = std::min(tensor.rank, LS_MAX_RANK) - 1; dim >= 0; --dim) {
    tensor.shape[dim] = shape[dim];
    tensor.stride[dim] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(std::max<int64_t>(shape[dim], 1));
  }
  return tensor;
}

ls_status ls_slice(const ls_tensor* tensor, int32_t dim, int64_t begin, int64_t end,
                   ls_tensor* out) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"tensor", tensor}, {"out", out}}));
    TensorView view;
    LINESTATE_RETURN_IF_ERROR(to_view("tensor", *tensor, &view));
    if (dim < 0 || dim >= view.rank) {
      return invalid_argument("dim: expected 0 to ", view.rank - 1, ", got ", dim);
    }
    const int64_t size = view.shape[static_cast<size_t>(dim)];
    if (begin < 0 || end < begin || end > size) {
      return invalid_argument("begin, end: expected a range within [0, ", size, "), got [", begin,
                              ", ", end, ")");
    }
    if (begin == end) begin = end = 0;  // no pointer beyond the memory
    return put("out", out, to_c(view.slice(dim, begin, end)));
  });
}

ls_status ls_device_status_reset(ls_device_status* block) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(check_block(block));
    new (block) DeviceStatus;
    return {};
  });
}

ls_status ls_device_status_flags(const ls_device_status* block, uint32_t* flags) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(check_block(block));
    return put("flags", flags, block_of(block).flags.load(std::memory_order_relaxed));
  });
}

ls_status ls_device_status_row(const ls_device_status* block, uint32_t flag, int32_t* row) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(check_block(block));
    const bool one_bit = flag != 0 && (flag & (flag - 1)) == 0 && flag < (1u << kDeviceFlagCount);
    if (!one_bit) return invalid_argument("flag: expected one ls_device_flag, got ", flag);
    return put("row", row, block_of(block).row_of(static_cast<DeviceFlag>(flag)));
  });
}

ls_status ls_device_status_overflow(const ls_device_status* block, int32_t* slot, int32_t* layer) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(check_block(block));
    LINESTATE_RETURN_IF_ERROR(require({{"slot", slot}, {"layer", layer}}));
    *slot = block_of(block).overflow_slot.load(std::memory_order_relaxed);
    *layer = block_of(block).overflow_layer.load(std::memory_order_relaxed);
    return {};
  });
}

ls_status ls_device_status_describe(const ls_device_status* block, char* buffer, size_t size,
                                    size_t* needed) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(check_block(block));
    return put_text(block_of(block).describe(), buffer, size, needed);
  });
}

void ls_set_log_callback(ls_log_callback callback, void* user) { set_log_callback(callback, user); }

ls_status ls_list_kernels(char* buffer, size_t size, size_t* needed) {
  return put_list(list_kernels, buffer, size, needed, [](const KernelInfo& info) {
    return concat(field(info.op), '\t', field(info.kernel), '\t', field(info.device), '\t',
                  field(info.summary));
  });
}

ls_status ls_list_devices(char* buffer, size_t size, size_t* needed) {
  return put_list(list_devices, buffer, size, needed, [](const DeviceInfo& info) {
    return concat(device_name(info.device), '\t', info.threads, '\t', info.memory_bytes, '\t',
                  field(info.features), '\t', field(info.name));
  });
}

ls_status ls_cuda_note(char* buffer, size_t size, size_t* needed) {
  return fenced([&] { return put_text(cuda_note(), buffer, size, needed); });
}

ls_status ls_list_presets(char* buffer, size_t size, size_t* needed) {
  return put_list(model_preset_names, buffer, size, needed,
                  [](const std::string& name) { return field(name); });
}

ls_status ls_kernel_uses(char* buffer, size_t size, size_t* needed) {
  return put_list(kernel_uses, buffer, size, needed, [](const KernelUse& use) {
    return concat(field(use.op), '\t', field(use.kernel), '\t', use.calls, '\t', use.fallbacks,
                  '\t', field(use.last_reason));
  });
}

void ls_reset_kernel_uses(void) { reset_kernel_uses(); }

ls_status ls_split_packed_qkv(const ls_tensor* packed, int64_t num_heads, int64_t num_value_heads,
                              int64_t k_dim, int64_t v_dim, ls_tensor* q, ls_tensor* k,
                              ls_tensor* v) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"packed", packed}, {"q", q}, {"k", k}, {"v", v}}));
    Reader reader;
    ConstTensorView view;
    reader.tensor("packed", *packed, &view);
    LINESTATE_RETURN_IF_ERROR(reader.status());
    const Result<PackedQkv> parts =
        split_packed_qkv(view, num_heads, num_value_heads, k_dim, v_dim);
    if (!parts.ok()) return parts.status();
    *q = to_c(parts->q);
    *k = to_c(parts->k);
    *v = to_c(parts->v);
    return {};
  });
}

ls_status ls_lightning_slopes(int64_t num_heads, int64_t layer, int64_t num_layers, int32_t tp_rank,
                              int32_t tp_size, int32_t slope_rule, float* slopes,
                              int64_t capacity) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"slopes", slopes}}));
    Reader reader;
    SlopeRule rule{};
    reader.choice("slope_rule", slope_rule, SlopeRule::kPreviousLayer, &rule);
    LINESTATE_RETURN_IF_ERROR(reader.status());
    const auto made = lightning_slopes(num_heads, layer, num_layers, {tp_rank, tp_size}, rule);
    if (!made.ok()) return made.status();
    const auto count = static_cast<int64_t>(made->size());
    if (capacity < count) {
      return invalid_argument("capacity: expected at least ", count, ", got ", capacity);
    }
    std::copy(made->begin(), made->end(), slopes);
    return {};
  });
}
