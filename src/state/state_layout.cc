#include "state/state_layout.h"

#include "base/check.h"
#include "base/int_math.h"
#include "base/message.h"
#include "state/replay_rings.h"

namespace linestate {
namespace {

// Every plane starts on a border that vector loads, DMA engines and cache lines all like.
constexpr int64_t kPlaneAlign = 256;
// Far beyond any model, and small enough that one slot's bytes fit 63 bits.
constexpr int64_t kMost = int64_t{1} << 20;

Status validate(const LayerState& layer, size_t index) {
  const std::string where = concat("spec.layers[", index, "]");
  if (layer.heads < 1 || layer.heads > kMost) {
    return invalid_argument(where, ".heads: expected 1 to ", kMost, ", got ", layer.heads);
  }
  LINESTATE_RETURN_IF_ERROR(check_head_dim((where + ".k_dim").c_str(), layer.k_dim));
  LINESTATE_RETURN_IF_ERROR(check_head_dim((where + ".v_dim").c_str(), layer.v_dim));
  if (layer.conv_channels < 0 || layer.conv_tail < 0 ||
      (layer.conv_channels == 0) != (layer.conv_tail == 0)) {
    return invalid_argument(where,
                            ": expected conv_channels and conv_tail both 0 or both > 0, got ",
                            layer.conv_channels, " and ", layer.conv_tail);
  }
  if (layer.conv_channels > kMost) {
    return invalid_argument(where, ".conv_channels: expected at most ", kMost, ", got ",
                            layer.conv_channels);
  }
  if (layer.conv_tail > 3) {
    return invalid_argument(where, ".conv_tail: expected 0 to 3, got ", layer.conv_tail);
  }
  return {};
}

template <typename Visit>
bool for_each_plane(const PoolSpec& spec, int64_t num_slots, Visit&& visit) {
  int64_t offset = 0;
  for (const LayerState& layer : spec.layers) {
    const int64_t sizes[2] = {recurrent_elements(layer) * dtype_bytes(spec.state_dtype),
                              window_elements(layer) * dtype_bytes(spec.window_dtype)};
    for (int plane = 0; plane < 2; ++plane) {
      if (sizes[plane] == 0) continue;
      visit(layer, plane, offset);
      int64_t bytes = 0;
      if (__builtin_mul_overflow(sizes[plane], num_slots, &bytes)) return false;
      if (__builtin_add_overflow(offset, bytes, &offset)) return false;
      if (__builtin_add_overflow(offset, kPlaneAlign - 1, &offset)) return false;
      offset -= offset % kPlaneAlign;
    }
  }
  visit(LayerState{}, 2, offset);
  return true;
}

}  // namespace

Status validate(const PoolSpec& spec) {
  if (spec.layers.empty()) return invalid_argument("spec.layers: expected at least one layer");
  if (!is_compute_dtype(spec.state_dtype)) {
    return invalid_argument("spec.state_dtype: expected f32, bf16 or f16, got ",
                            dtype_name(spec.state_dtype));
  }
  if (!is_compute_dtype(spec.window_dtype)) {
    return invalid_argument("spec.window_dtype: expected f32, bf16 or f16, got ",
                            dtype_name(spec.window_dtype));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LINESTATE_RETURN_IF_ERROR(validate(spec.layers[i], i));
  }
  return validate_replay(spec);
}

int64_t recurrent_elements(const LayerState& layer) {
  return layer.heads * layer.k_dim * layer.v_dim;
}

int64_t window_elements(const LayerState& layer) { return layer.conv_channels * layer.conv_tail; }

std::vector<LayerPlanes> lay_out(const PoolSpec& spec, int64_t num_slots, void* memory,
                                 Device device) {
  std::vector<LayerPlanes> planes;
  auto at = [memory](int64_t offset) -> void* {
    return memory == nullptr ? nullptr : static_cast<char*>(memory) + offset;
  };
  for_each_plane(spec, num_slots, [&](const LayerState& layer, int plane, int64_t offset) {
    if (plane == 0) {
      const bool v_first = layer.layout == StateLayout::kVK;
      LayerPlanes& made = planes.emplace_back();
      made.recurrent = TensorView(at(offset), spec.state_dtype,
                                  {num_slots, layer.heads, v_first ? layer.v_dim : layer.k_dim,
                                   v_first ? layer.k_dim : layer.v_dim},
                                  device);
    } else if (plane == 1) {
      planes.back().conv_window =
          TensorView(at(offset), spec.window_dtype,
                     {num_slots, layer.conv_tail, layer.conv_channels}, device)
              .transpose(1, 2);
    }
  });
  return planes;
}

int64_t pool_bytes(const PoolSpec& spec, int64_t num_slots) {
  int64_t total = 0;
  const bool fits = for_each_plane(spec, num_slots,
                                   [&](const LayerState&, int, int64_t offset) { total = offset; });
  return fits ? total : -1;
}

LayerState layer_state(const LayerSpec& layer) {
  LayerState state;
  state.layer_id = layer.layer_id;
  state.layout = layer.kind == LayerKind::kKda ? StateLayout::kVK : StateLayout::kKV;
  state.heads = layer.heads.num_value_heads;
  state.k_dim = layer.heads.k_dim;
  state.v_dim = layer.heads.v_dim;
  state.conv_channels = layer.conv_channels();
  state.conv_tail = state.conv_channels > 0 ? layer.conv_width - 1 : 0;
  return state;
}

PoolSpec make_pool_spec(const ModelConfig& model, DType state_dtype, DType window_dtype) {
  PoolSpec spec;
  spec.state_dtype = state_dtype;
  spec.window_dtype = window_dtype;
  for (const LayerSpec& layer : model.linear_layers) spec.layers.push_back(layer_state(layer));
  return spec;
}

int64_t bytes_per_slot(const PoolSpec& spec) {
  int64_t bytes = replay_bytes_per_slot(spec);
  for (const LayerState& layer : spec.layers) {
    bytes += recurrent_elements(layer) * dtype_bytes(spec.state_dtype) +
             window_elements(layer) * dtype_bytes(spec.window_dtype);
  }
  return bytes;
}

int64_t max_slots(const PoolSpec& spec, int64_t budget_bytes) {
  const int64_t per_slot = bytes_per_slot(spec);
  if (per_slot <= 0) return 0;
  // Alignment costs at most kPlaneAlign a plane; step down until the true size fits.
  int64_t slots = budget_bytes / per_slot;
  while (slots > 0 && pool_bytes(spec, slots) + slots * replay_bytes_per_slot(spec) > budget_bytes)
    --slots;
  return slots;
}

}  // namespace linestate
