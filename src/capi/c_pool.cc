#include "capi/handles.h"
#include "state/state_layout.h"

using namespace linestate;        // NOLINT: this file is the wall between the two
using namespace linestate::capi;  // NOLINT

namespace {

Status read_layers(const ls_pool_spec& in, PoolSpec* spec) {
  Reader reader;
  for (size_t i = 0; i < in.num_layers && reader.status().ok(); ++i) {
    ls_layer_state from{};
    reader.require_ok(load_element("spec.layers", in.layers, i, &from));
    LayerState& layer = spec->layers.emplace_back();
    layer.layer_id = from.layer_id;
    reader.choice("spec.layers.layout", from.layout, StateLayout::kKV, &layer.layout);
    layer.heads = from.heads;
    layer.k_dim = from.k_dim;
    layer.v_dim = from.v_dim;
    layer.conv_channels = from.conv_channels;
    layer.conv_tail = from.conv_tail;
  }
  return reader.status();
}

// The layers are checked by now, so that `heads` says how many slopes there are.
Status read_replay(const ls_pool_spec& in, PoolSpec* spec) {
  Reader reader;
  reader.choice("spec.replay_dtype", in.replay_dtype, DType::kBool, &spec->replay.dtype);
  spec->replay.length = or_default(in.replay_length, 1);
  if (in.replay_slopes == nullptr) return reader.status();
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    const float* slopes = in.replay_slopes[i];
    std::vector<float>& to = spec->replay.slopes.emplace_back();
    if (slopes != nullptr) to.assign(slopes, slopes + spec->layers[i].heads);
  }
  return reader.status();
}

/// Calls `use(pool)` behind the fence.
template <typename Handle, typename Use>
ls_status with_pool(Handle* pool, const Use& use) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"pool", pool}}));
    return use(pool->pool);
  });
}

template <typename View>
ls_status put_plane(const ls_pool* handle, int64_t index, ls_tensor* view, const View& view_of) {
  return with_pool(handle, [&](const StatePool& pool) -> Status {
    if (index < 0 || index >= pool.num_layers()) {
      return invalid_argument("index: expected 0 to ", pool.num_layers() - 1, ", got ", index);
    }
    if (!pool.memory_bound()) {
      return Status(StatusCode::kFailedPrecondition,
                    "pool: expected memory, got a pool whose memory is released");
    }
    return put("view", view, to_c(view_of(pool)));
  });
}

}  // namespace

namespace linestate::capi {

Result<PoolSpec> to_pool_spec(const ls_pool_spec* in) {
  ls_pool_spec from{};
  LINESTATE_RETURN_IF_ERROR(load("spec", in, &from));
  Reader reader;
  PoolSpec spec;
  reader.choice("spec.state_dtype", from.state_dtype, DType::kBool, &spec.state_dtype);
  reader.choice("spec.window_dtype", from.window_dtype, DType::kBool, &spec.window_dtype);
  LINESTATE_RETURN_IF_ERROR(reader.status());
  if (from.model != nullptr) {
    spec = make_pool_spec(from.model->config, spec.state_dtype, spec.window_dtype);
  } else {
    LINESTATE_RETURN_IF_ERROR(read_layers(from, &spec));
  }
  LINESTATE_RETURN_IF_ERROR(validate(spec));
  LINESTATE_RETURN_IF_ERROR(read_replay(from, &spec));
  if (pool_bytes(spec, 1) < 0) return invalid_argument("spec: expected a slot of up to 2^63 bytes");
  return spec;
}

}  // namespace linestate::capi

ls_status ls_bytes_per_slot(const ls_pool_spec* spec, int64_t* bytes) {
  return fenced([&]() -> Status {
    const Result<PoolSpec> read = to_pool_spec(spec);
    if (!read.ok()) return read.status();
    return put("bytes", bytes, bytes_per_slot(*read));
  });
}

ls_status ls_max_slots(const ls_pool_spec* spec, int64_t budget_bytes, int64_t* slots) {
  return fenced([&]() -> Status {
    const Result<PoolSpec> read = to_pool_spec(spec);
    if (!read.ok()) return read.status();
    return put("slots", slots, max_slots(*read, budget_bytes));
  });
}

ls_status ls_pool_create(const ls_pool_spec* spec, int64_t num_slots, int32_t device_type,
                         int32_t device_index, ls_pool** out) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    *out = nullptr;
    const Result<PoolSpec> read = to_pool_spec(spec);
    if (!read.ok()) return read.status();
    const Result<Device> device = to_device(device_type, device_index);
    if (!device.ok()) return device.status();
    return put_handle(out, StatePool::create(*read, num_slots, *device));
  });
}

ls_status ls_pool_adopt(const ls_pool_spec* spec, const ls_adopted_layer* layers, size_t num_layers,
                        ls_pool** out) {
  return fenced([&]() -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"out", out}}));
    *out = nullptr;
    const Result<PoolSpec> read = to_pool_spec(spec);
    if (!read.ok()) return read.status();
    Reader reader;
    std::vector<AdoptedLayer> adopted;
    for (size_t i = 0; i < num_layers && reader.status().ok(); ++i) {
      ls_adopted_layer layer{};
      reader.require_ok(load_element("layers", layers, i, &layer));
      AdoptedLayer& to = adopted.emplace_back();
      reader.tensor("layers.recurrent", layer.recurrent, &to.recurrent);
      reader.tensor("layers.conv_window", layer.conv_window, &to.conv_window);
    }
    LINESTATE_RETURN_IF_ERROR(reader.status());
    return put_handle(out, StatePool::adopt(*read, adopted));
  });
}

void ls_pool_destroy(ls_pool* pool) { delete pool; }

ls_status ls_pool_num_slots(const ls_pool* pool, int64_t* count) {
  return with_pool(pool, [&](const StatePool& p) { return put("count", count, p.num_slots()); });
}

ls_status ls_pool_num_layers(const ls_pool* pool, int64_t* count) {
  return with_pool(pool, [&](const StatePool& p) { return put("count", count, p.num_layers()); });
}

ls_status ls_pool_recurrent(const ls_pool* pool, int64_t index, ls_tensor* view) {
  return put_plane(pool, index, view, [&](const StatePool& p) { return p.recurrent(index); });
}

ls_status ls_pool_conv_window(const ls_pool* pool, int64_t index, ls_tensor* view) {
  return put_plane(pool, index, view, [&](const StatePool& p) { return p.conv_window(index); });
}

ls_status ls_pool_allocate(ls_pool* pool, int32_t* slot) {
  return with_pool(pool, [&](StatePool& p) -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"slot", slot}}));  // before one is taken
    return put_result("slot", slot, p.allocate());
  });
}

ls_status ls_pool_free(ls_pool* pool, int32_t slot) {
  return with_pool(pool, [&](StatePool& p) { return p.free(slot); });
}

ls_status ls_pool_retire(ls_pool* pool, int32_t slot, ls_event_done done, void* handle) {
  return with_pool(pool, [&](StatePool& p) { return p.retire(slot, SlotEvent{done, handle}); });
}

ls_status ls_pool_allocated(const ls_pool* pool, int32_t slot, int32_t* allocated) {
  return with_pool(pool, [&](const StatePool& p) {
    return put("allocated", allocated, p.allocated(slot) ? 1 : 0);
  });
}

ls_status ls_pool_free_slots(const ls_pool* pool, int64_t* count) {
  return with_pool(pool, [&](const StatePool& p) { return put("count", count, p.free_slots()); });
}

ls_status ls_pool_in_flight_slots(const ls_pool* pool, int64_t* count) {
  return with_pool(pool,
                   [&](const StatePool& p) { return put("count", count, p.in_flight_slots()); });
}

ls_status ls_pool_fold(const ls_pool* pool, const ls_tensor* slots, const ls_context* context) {
  return with_pool(pool, [&](const StatePool& p) -> Status {
    LINESTATE_RETURN_IF_ERROR(require({{"slots", slots}}));
    Reader reader;
    ConstTensorView view;
    ExecContext exec;
    reader.tensor("slots", *slots, &view);
    read(reader, context, &exec);
    LINESTATE_RETURN_IF_ERROR(reader.status());
    return p.fold(view, exec);
  });
}

ls_status ls_pool_mark_snapshot(ls_pool* pool, int32_t slot, int64_t position) {
  return with_pool(pool, [&](StatePool& p) { return p.mark_snapshot(slot, position); });
}

ls_status ls_pool_clear_snapshot(ls_pool* pool, int32_t slot) {
  return with_pool(pool, [&](StatePool& p) { return p.clear_snapshot(slot); });
}

ls_status ls_pool_snapshot_position(const ls_pool* pool, int32_t slot, int64_t* position) {
  return with_pool(pool, [&](const StatePool& p) {
    return put_result("position", position, p.snapshot_position(slot));
  });
}

ls_status ls_pool_release_memory(ls_pool* pool) {
  return with_pool(pool, [](StatePool& p) { return p.release_memory(); });
}

ls_status ls_pool_rebind_memory(ls_pool* pool) {
  return with_pool(pool, [](StatePool& p) { return p.rebind_memory(); });
}

ls_status ls_pool_memory_bound(const ls_pool* pool, int32_t* bound) {
  return with_pool(
      pool, [&](const StatePool& p) { return put("bound", bound, p.memory_bound() ? 1 : 0); });
}
