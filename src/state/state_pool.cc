#include "linestate/state_pool.h"

#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "cuda/device_pointer.h"
#include "linestate/device_memory.h"
#include "state/replay_rings.h"
#include "state/slot_allocator.h"
#include "state/state_layout.h"

namespace linestate {

struct StatePool::Impl {
  PoolSpec spec;
  int64_t num_slots = 0;
  Device device{};
  SlotAllocator slots;
  DeviceMemory memory;  // null when adopted or released
  bool adopted = false;
  bool bound = false;
  std::vector<LayerPlanes> layers;
  std::vector<TensorView> planes;
  ReplayRings rings;
  std::vector<ReplayFoldLayer> fold_layers;  // with rings: what fold() works on
  std::vector<int64_t> snapshot;  // tokens by slot, 0 = none; grows with the highest marked slot

  Impl(const PoolSpec& spec_in, int64_t num_slots_in, Device device_in)
      : spec(spec_in), num_slots(num_slots_in), device(device_in), slots(num_slots_in) {}

  // All or nothing: what needs memory comes first.
  void set_layers(std::vector<LayerPlanes> made, ReplayRings made_rings) {
    std::vector<TensorView> all;
    for (const LayerPlanes& layer : made) {
      all.push_back(layer.recurrent);
      if (layer.conv_window.defined()) all.push_back(layer.conv_window);
    }
    std::vector<ReplayFoldLayer> folds;
    for (size_t i = 0; made_rings.present() && i < made.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      folds.push_back({made[i].recurrent, made_rings.layer(index), made_rings.slopes(index),
                       spec.layers[i].layer_id});
    }
    layers = std::move(made);
    planes = std::move(all);
    rings = std::move(made_rings);
    fold_layers = std::move(folds);
  }

  void forget_snapshot(int32_t slot) {
    if (slot >= 0 && static_cast<size_t>(slot) < snapshot.size()) {
      snapshot[static_cast<size_t>(slot)] = 0;
    }
  }

  Status retire(int32_t slot, SlotEvent event) {
    LINESTATE_RETURN_IF_ERROR(slots.retire(slot, event));
    forget_snapshot(slot);  // so that an allocated slot never starts with a mark
    return {};
  }

  Status check_allocated(int32_t slot) const {
    if (slots.allocated(slot)) return {};
    return invalid_argument("slot: expected an allocated slot of ", num_slots, ", got ", slot);
  }

  Status allocate_memory() {
    const auto no_memory = [&] {
      return Status(StatusCode::kResourceExhausted,
                    concat("state pool: cannot allocate ", num_slots, " slots of ",
                           bytes_per_slot(spec), " bytes"));
    };
    const int64_t bytes = pool_bytes(spec, num_slots);
    if (bytes < 0) return no_memory();
    Result<DeviceMemory> block = DeviceMemory::allocate(device, bytes);
    if (!block.ok()) {
      return block.status().code() == StatusCode::kResourceExhausted ? no_memory() : block.status();
    }
    DeviceMemory held = std::move(block).value();
    Result<ReplayRings> made = ReplayRings::create(spec, num_slots, device);
    if (!made.ok()) return made.status();
    set_layers(lay_out(spec, num_slots, held.data(), device), *std::move(made));
    memory = std::move(held);
    bound = true;
    return {};
  }
};

StatePool::StatePool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StatePool::StatePool(StatePool&&) noexcept = default;
StatePool& StatePool::operator=(StatePool&&) noexcept = default;
StatePool::~StatePool() = default;

Result<StatePool> StatePool::create(const PoolSpec& spec, int64_t num_slots, Device device) try {
  LINESTATE_RETURN_IF_ERROR(validate(spec));
  if (num_slots < 1 || num_slots > INT32_MAX) {
    return invalid_argument("num_slots: expected 1 to ", INT32_MAX, ", got ", num_slots);
  }
  if (device.type == DeviceType::kExternal) {
    return Status(StatusCode::kUnsupported,
                  concat("device: expected cpu or cuda, got ", device_name(device)));
  }
  if (pool_bytes(spec, num_slots) < 0) {
    return Status(StatusCode::kResourceExhausted,
                  concat("state pool: ", num_slots, " slots of ", bytes_per_slot(spec),
                         " bytes do not fit any address space"));
  }
  auto impl = std::make_unique<Impl>(spec, num_slots, device);
  LINESTATE_RETURN_IF_ERROR(impl->allocate_memory());
  return StatePool(std::move(impl));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

namespace {

Status check_adopted(const PoolSpec& spec, size_t index, const AdoptedLayer& layer,
                     int64_t num_slots, const ExecContext& context) {
  const LayerState& want = spec.layers[index];
  const LayerPlanes shapes = [&] {
    PoolSpec one = spec;
    one.layers = {want};
    return lay_out(one, num_slots, nullptr)[0];
  }();
  auto check_plane = [&](const std::string& name, const TensorView& given, const TensorView& shape,
                         DType dtype) -> Status {
    const char* text = name.c_str();
    if (shape.rank == 4) {
      LINESTATE_RETURN_IF_ERROR(check_shape(
          text, given, {shape.shape[0], shape.shape[1], shape.shape[2], shape.shape[3]}));
    } else {
      LINESTATE_RETURN_IF_ERROR(
          check_shape(text, given, {shape.shape[0], shape.shape[1], shape.shape[2]}));
    }
    LINESTATE_RETURN_IF_ERROR(check_dtype(text, given, {dtype}));
    LINESTATE_RETURN_IF_ERROR(check_placement(text, given, context));
    LINESTATE_RETURN_IF_ERROR(check_device_pointer(text, given));
    return check_no_self_overlap(text, given);
  };
  const std::string where = concat("layers[", index, "]");
  LINESTATE_RETURN_IF_ERROR(
      check_plane(where + ".recurrent", layer.recurrent, shapes.recurrent, spec.state_dtype));
  if (!shapes.conv_window.defined()) {
    if (!layer.conv_window.defined()) return {};
    return invalid_argument(where, ".conv_window: expected none, got ",
                            describe(layer.conv_window));
  }
  return check_plane(where + ".conv_window", layer.conv_window, shapes.conv_window,
                     spec.window_dtype);
}

}  // namespace

Result<StatePool> StatePool::adopt(const PoolSpec& spec, std::span<const AdoptedLayer> layers) try {
  LINESTATE_RETURN_IF_ERROR(validate(spec));
  if (layers.size() != spec.layers.size()) {
    return invalid_argument("layers: expected ", spec.layers.size(), ", got ", layers.size());
  }
  const int64_t num_slots = layers[0].recurrent.defined() ? layers[0].recurrent.shape[0] : 0;
  if (num_slots < 1 || num_slots > INT32_MAX) {
    return invalid_argument("layers[0].recurrent: expected 1 to ", INT32_MAX, " slots, got ",
                            describe(layers[0].recurrent));
  }
  ExecContext context;
  context.device = layers[0].recurrent.device;
  std::set<const void*> bases;
  std::vector<LayerPlanes> planes;
  for (size_t i = 0; i < layers.size(); ++i) {
    LINESTATE_RETURN_IF_ERROR(check_adopted(spec, i, layers[i], num_slots, context));
    for (const TensorView& plane : {layers[i].recurrent, layers[i].conv_window}) {
      if (plane.defined() && !bases.insert(plane.data).second) {
        return invalid_argument("layers[", i,
                                "]: expected planes of their own, got memory that "
                                "another plane starts at");
      }
    }
    planes.push_back({layers[i].recurrent, layers[i].conv_window});
  }
  auto impl = std::make_unique<Impl>(spec, num_slots, context.device);
  Result<ReplayRings> rings = ReplayRings::create(spec, num_slots, context.device);
  if (!rings.ok()) return rings.status();
  impl->set_layers(std::move(planes), *std::move(rings));
  impl->adopted = true;
  impl->bound = true;
  return StatePool(std::move(impl));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

int64_t StatePool::num_slots() const { return impl_->num_slots; }
int64_t StatePool::num_layers() const { return static_cast<int64_t>(impl_->spec.layers.size()); }
const PoolSpec& StatePool::spec() const { return impl_->spec; }
Device StatePool::device() const { return impl_->device; }

TensorView StatePool::recurrent(int64_t index) const {
  return impl_->layers[static_cast<size_t>(index)].recurrent;
}
TensorView StatePool::conv_window(int64_t index) const {
  return impl_->layers[static_cast<size_t>(index)].conv_window;
}
bool StatePool::has_replay() const { return impl_->rings.present(); }
const ReplayRing& StatePool::replay_ring(int64_t index) const { return impl_->rings.layer(index); }
TensorView StatePool::replay_cursor() const { return impl_->rings.cursor(); }

Status StatePool::fold(const ConstTensorView& slots, const ExecContext& context) const try {
  if (!has_replay()) return {};
  ReplayFoldParams params;
  params.layers = impl_->fold_layers;
  params.slots = slots;
  params.cursor = replay_cursor();
  return replay_fold(params, context);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

std::span<const TensorView> StatePool::planes() const { return impl_->planes; }

Result<int32_t> StatePool::allocate() try {
  return impl_->slots.allocate();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}
Status StatePool::free(int32_t slot) { return retire(slot, {}); }
Status StatePool::retire(int32_t slot, SlotEvent event) try {
  return impl_->retire(slot, event);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}
bool StatePool::allocated(int32_t slot) const { return impl_->slots.allocated(slot); }
int64_t StatePool::free_slots() const { return impl_->slots.free_slots(); }
int64_t StatePool::in_flight_slots() const { return impl_->slots.in_flight_slots(); }

Status StatePool::mark_snapshot(int32_t slot, int64_t position) try {
  LINESTATE_RETURN_IF_ERROR(impl_->check_allocated(slot));
  if (position < 1) return invalid_argument("position: expected >= 1, got ", position);
  const auto at = static_cast<size_t>(slot);
  if (at >= impl_->snapshot.size()) impl_->snapshot.resize(at + 1, 0);
  impl_->snapshot[at] = position;
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status StatePool::clear_snapshot(int32_t slot) try {
  LINESTATE_RETURN_IF_ERROR(impl_->check_allocated(slot));
  impl_->forget_snapshot(slot);
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<int64_t> StatePool::snapshot_position(int32_t slot) const try {
  if (slot < 0 || slot >= impl_->num_slots) {
    return invalid_argument("slot: expected 0 to ", impl_->num_slots - 1, ", got ", slot);
  }
  const auto at = static_cast<size_t>(slot);
  if (at >= impl_->snapshot.size() || impl_->snapshot[at] == 0) {
    return Status(StatusCode::kFailedPrecondition,
                  concat("slot: expected a slot that holds a snapshot, got ", slot,
                         impl_->slots.allocated(slot) ? ", which has none" : ", which is free"));
  }
  return impl_->snapshot[at];
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status StatePool::release_memory() try {
  if (impl_->adopted || !impl_->bound) {
    return Status(StatusCode::kFailedPrecondition,
                  impl_->adopted ? "release_memory: the memory belongs to the engine"
                                 : "release_memory: already released");
  }
  impl_->set_layers(lay_out(impl_->spec, impl_->num_slots, nullptr, impl_->device), {});
  impl_->memory = {};
  impl_->bound = false;
  impl_->snapshot.clear();
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status StatePool::rebind_memory() try {
  if (impl_->bound) {
    return Status(StatusCode::kFailedPrecondition, "rebind_memory: the pool has its memory");
  }
  return impl_->allocate_memory();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

bool StatePool::memory_bound() const { return impl_->bound; }

}  // namespace linestate
