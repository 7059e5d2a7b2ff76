#include "linestate/state/slot_pack.h"

#include <cstring>
#include <string>

#include "base/message.h"
#include "linestate/device_memory.h"
#include "linestate/version.h"
#include "state/crc64.h"
#include "state/slot_codec.h"
#include "state/slot_pack_format.h"
#include "state/slot_staging.h"
#include "state/state_layout.h"

namespace linestate {
namespace {

Status check_scheme(PackScheme scheme) {
  if (static_cast<int>(scheme) <= static_cast<int>(PackScheme::kInt8)) return {};
  return invalid_argument("scheme: expected exact, f16 or int8, got ", static_cast<int>(scheme));
}

Status check_layer_count(const PoolSpec& spec) {
  if (static_cast<int64_t>(spec.layers.size()) <= kMostPackLayers) return {};
  return invalid_argument("spec.layers: expected at most ", kMostPackLayers, ", got ",
                          spec.layers.size());
}

Status check_slot(const StatePool& pool, int32_t slot) {
  if (!pool.memory_bound()) {
    return Status(StatusCode::kFailedPrecondition, "pool: expected bound memory, it was released");
  }
  if (slot >= 0 && slot < pool.num_slots()) return {};
  return invalid_argument("slot: expected 0 to ", pool.num_slots() - 1, ", got ", slot);
}

// Writes one plane, zeros up to the end of its place, and returns the checksum of all of it.
Result<uint64_t> pack_plane(const SlotPlane& plane, PackScheme scheme, std::span<std::byte> place,
                            const char* what, int64_t layer) {
  const int64_t row = encoded_row_bytes(plane.size[2], plane.dtype, scheme);
  const auto used = static_cast<size_t>(plane.size[0] * plane.size[1] * row);
  if (!encode_plane(plane, scheme, place.data())) {
    return Status(StatusCode::kFailedPrecondition,
                  concat("layers[", layer, "].", what, ": expected values that scheme ",
                         pack_scheme_name(scheme), " can hold, got one that is ",
                         scheme == PackScheme::kF16 ? "beyond f16's range" : "not finite"));
  }
  std::memset(place.data() + used, 0, place.size() - used);
  return crc64(place);
}

std::span<std::byte> place_of(std::span<std::byte> out, int64_t offset, int64_t bytes) {
  return out.subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes));
}

Status check_same_layer(const LayerState& got, const LayerState& want, size_t index) {
  const struct {
    const char* name;
    int64_t got;
    int64_t want;
  } fields[] = {{"layer_id", got.layer_id, want.layer_id},
                {"layout", static_cast<int64_t>(got.layout), static_cast<int64_t>(want.layout)},
                {"heads", got.heads, want.heads},
                {"k_dim", got.k_dim, want.k_dim},
                {"v_dim", got.v_dim, want.v_dim},
                {"conv_channels", got.conv_channels, want.conv_channels},
                {"conv_tail", got.conv_tail, want.conv_tail}};
  for (const auto& field : fields) {
    if (field.got != field.want) {
      return invalid_argument("buffer.layers[", index, "].", field.name, ": expected ", field.want,
                              " as in the pool, got ", field.got);
    }
  }
  return {};
}

Status check_matches(const SlotPackInfo& info, const PoolSpec& spec, const UnpackOptions& options) {
  if (info.numerics_version != kNumericsVersion && !options.allow_other_numerics) {
    return Status(StatusCode::kFailedPrecondition,
                  concat("buffer.numerics_version: expected ", kNumericsVersion, ", got ",
                         info.numerics_version, " (allow_other_numerics takes it)"));
  }
  if (info.spec.layers.size() != spec.layers.size()) {
    return invalid_argument("buffer.num_layers: expected ", spec.layers.size(),
                            " as in the pool, got ", info.spec.layers.size());
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LINESTATE_RETURN_IF_ERROR(check_same_layer(info.spec.layers[i], spec.layers[i], i));
  }
  if (info.spec.window_dtype != spec.window_dtype) {
    return invalid_argument("buffer.window_dtype: expected ", dtype_name(spec.window_dtype),
                            " as in the pool, got ", dtype_name(info.spec.window_dtype));
  }
  if (info.spec.state_dtype != spec.state_dtype && !options.allow_state_dtype_change) {
    return invalid_argument("buffer.state_dtype: expected ", dtype_name(spec.state_dtype),
                            " as in the pool, got ", dtype_name(info.spec.state_dtype),
                            " (allow_state_dtype_change takes it)");
  }
  return {};
}

Status check_values(const ParsedPack& pack, std::span<const std::byte> buffer,
                    const StagedSlot& slot) {
  const Encoding encoding{pack.info.spec.state_dtype, pack.info.scheme};
  for (size_t i = 0; i < pack.layers.size(); ++i) {
    const SlotPlane& plane = slot.recurrent(static_cast<int64_t>(i));
    switch (check_decode(plane, encoding, buffer.data() + pack.layers[i].recurrent_offset)) {
      case DecodeProblem::kNone:
        break;
      case DecodeProblem::kBadScale:
        return Status(StatusCode::kDataLoss,
                      concat("slot pack: layers[", i, "].recurrent: expected finite scales >= 0"));
      case DecodeProblem::kOverflow:
        return Status(StatusCode::kFailedPrecondition,
                      concat("buffer.layers[", i, "].recurrent: expected values in the range of ",
                             dtype_name(plane.dtype), ", the pool's dtype"));
    }
  }
  return {};
}

// Pending records of the slot's ring go into its state. On a device the id needs a place there.
Status fold_slot(const StatePool& pool, int32_t slot, void* stream) {
  if (!pool.has_replay()) return {};
  ExecContext context;
  context.device = pool.device();
  context.num_threads = 1;
  context.stream = stream;
  if (pool.device().type == DeviceType::kCpu) {
    return pool.fold(ConstTensorView(&slot, DType::kI32, {1}), context);
  }
  Result<DeviceMemory> id = DeviceMemory::allocate(pool.device(), sizeof(slot));
  LINESTATE_RETURN_IF_ERROR(id.status());
  LINESTATE_RETURN_IF_ERROR(
      copy_bytes({id->data(), pool.device()}, {&slot, {}}, sizeof(slot), stream));
  LINESTATE_RETURN_IF_ERROR(
      pool.fold(ConstTensorView(id->data(), DType::kI32, {1}, pool.device()), context));
  return synchronize(pool.device(), stream);  // before the id goes
}

}  // namespace

std::string_view pack_scheme_name(PackScheme scheme) {
  constexpr std::string_view kNames[] = {"exact", "f16", "int8"};
  return check_scheme(scheme).ok() ? kNames[static_cast<size_t>(scheme)] : "unknown";
}

Result<int64_t> slot_pack_bytes(const PoolSpec& spec, PackScheme scheme) try {
  LINESTATE_RETURN_IF_ERROR(validate(spec));
  LINESTATE_RETURN_IF_ERROR(check_layer_count(spec));
  LINESTATE_RETURN_IF_ERROR(check_scheme(scheme));
  return static_cast<int64_t>(plan_pack(spec, scheme).header.total_bytes);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<int64_t> pack_slot(const StatePool& pool, int32_t slot, int64_t position, PackScheme scheme,
                          std::span<std::byte> out, const SlotStaging& staging) try {
  LINESTATE_RETURN_IF_ERROR(check_slot(pool, slot));
  LINESTATE_RETURN_IF_ERROR(check_layer_count(pool.spec()));
  LINESTATE_RETURN_IF_ERROR(check_scheme(scheme));
  if (position < 0) return invalid_argument("position: expected >= 0, got ", position);
  PackPlan plan = plan_pack(pool.spec(), scheme);
  if (out.size() < plan.header.total_bytes) {
    return invalid_argument("out: expected at least ", plan.header.total_bytes, " bytes, got ",
                            out.size());
  }
  const Result<StagedSlot> staged = StagedSlot::create(pool, slot, staging);
  if (!staged.ok()) return staged.status();
  LINESTATE_RETURN_IF_ERROR(fold_slot(pool, slot, staging.stream));
  LINESTATE_RETURN_IF_ERROR(staged->download());
  std::memset(out.data(), 0, sizeof(PackHeader));  // no valid header until all is there
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    PackLayer& layer = plan.layers[i];
    const auto index = static_cast<int64_t>(i);
    const Result<uint64_t> recurrent = pack_plane(
        staged->recurrent(index), scheme,
        place_of(out, layer.recurrent_offset, layer.recurrent_bytes), "recurrent", index);
    if (!recurrent.ok()) return recurrent.status();
    layer.recurrent_checksum = *recurrent;
    if (!pool.conv_window(index).defined()) continue;  // no bytes have the checksum 0
    const Result<uint64_t> window =
        pack_plane(staged->window(index), PackScheme::kExact,
                   place_of(out, layer.window_offset, layer.window_bytes), "conv_window", index);
    if (!window.ok()) return window.status();
    layer.window_checksum = *window;
  }
  const auto table = std::as_bytes(std::span(plan.layers));
  plan.header.position = position;
  plan.header.header_checksum = pack_header_checksum(plan.header, table);
  std::memcpy(out.data() + sizeof(PackHeader), table.data(), table.size());
  std::memcpy(out.data(), &plan.header, sizeof(PackHeader));
  return static_cast<int64_t>(plan.header.total_bytes);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

struct SlotUnpack::Impl {
  ParsedPack pack;
  std::span<const std::byte> buffer;
  const StatePool& pool;
  int32_t slot;
  StagedSlot staged;
  void* stream;
};

Result<SlotUnpack> SlotUnpack::check(std::span<const std::byte> buffer, const StatePool& pool,
                                     int32_t slot, const UnpackOptions& options,
                                     const SlotStaging& staging) try {
  LINESTATE_RETURN_IF_ERROR(check_slot(pool, slot));
  Result<ParsedPack> pack = parse_pack(buffer);
  if (!pack.ok()) return pack.status();
  LINESTATE_RETURN_IF_ERROR(check_matches(pack->info, pool.spec(), options));
  Result<StagedSlot> staged = StagedSlot::create(pool, slot, staging);
  if (!staged.ok()) return staged.status();
  LINESTATE_RETURN_IF_ERROR(check_values(*pack, buffer, *staged));
  return SlotUnpack(std::make_shared<const Impl>(
      Impl{*std::move(pack), buffer, pool, slot, *std::move(staged), staging.stream}));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

int64_t SlotUnpack::position() const { return impl_->pack.info.position; }

Status SlotUnpack::run() const {
  const auto& [pack, buffer, pool, slot, staged, stream] = *impl_;
  if (pool.has_replay()) {
    auto* cursor = static_cast<int32_t*>(pool.replay_cursor().data) + slot;
    LINESTATE_RETURN_IF_ERROR(fill_bytes({cursor, pool.device()}, 0, sizeof(int32_t), stream));
  }
  const Encoding state{pack.info.spec.state_dtype, pack.info.scheme};
  const Encoding window{pack.info.spec.window_dtype, PackScheme::kExact};
  for (size_t i = 0; i < pack.layers.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    decode_plane(staged.recurrent(index), state, buffer.data() + pack.layers[i].recurrent_offset);
    if (!pool.conv_window(index).defined()) continue;
    decode_plane(staged.window(index), window, buffer.data() + pack.layers[i].window_offset);
  }
  return staged.upload();
}

Result<int64_t> unpack_slot(std::span<const std::byte> buffer, const StatePool& pool, int32_t slot,
                            const UnpackOptions& options, const SlotStaging& staging) try {
  const Result<SlotUnpack> unpack = SlotUnpack::check(buffer, pool, slot, options, staging);
  if (!unpack.ok()) return unpack.status();
  LINESTATE_RETURN_IF_ERROR(unpack->run());
  return unpack->position();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<SlotPackInfo> read_slot_pack(std::span<const std::byte> buffer) try {
  Result<ParsedPack> parsed = parse_pack(buffer);
  if (!parsed.ok()) return parsed.status();
  return std::move(parsed->info);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace linestate
