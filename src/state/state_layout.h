// Shapes and sizes of the planes of a pool. One plane is the recurrent state or the convolution
// window of one layer over all slots.
#pragma once

#include <cstdint>
#include <vector>

#include "linestate/state_pool.h"
#include "linestate/status.h"
#include "linestate/tensor.h"

namespace linestate {

/// kInvalidArgument naming the layer and field that breaks a rule of LayerState.
Status validate(const PoolSpec& spec);

/// What a slot holds for a layer of a model.
LayerState layer_state(const LayerSpec& layer);

int64_t recurrent_elements(const LayerState& layer);
int64_t window_elements(const LayerState& layer);

/// Views over one block of memory of `device`; null data gives the shapes alone. Within a layer all
/// slots of the recurrent state come first, then all windows. The window lies tap-major in memory
/// ([P, W-1, channels], so that neighbouring channels are neighbours) and is viewed as
/// [P, channels, W-1]. The window view is undefined for a layer without one.
struct LayerPlanes {
  TensorView recurrent;
  TensorView conv_window;
};
std::vector<LayerPlanes> lay_out(const PoolSpec& spec, int64_t num_slots, void* memory,
                                 Device device = {});

/// Bytes that lay_out spans, alignment included; -1 when the size does not fit 63 bits.
int64_t pool_bytes(const PoolSpec& spec, int64_t num_slots);

}  // namespace linestate
