#include "state/slot_pack_format.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/int_math.h"
#include "base/message.h"
#include "linestate/version.h"
#include "state/crc64.h"
#include "state/slot_codec.h"
#include "state/state_layout.h"

namespace linestate {
namespace {

constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(PackHeader));
constexpr auto kLayerBytes = static_cast<int64_t>(sizeof(PackLayer));

template <typename... Parts>
Status damaged(const Parts&... parts) {
  return Status(StatusCode::kDataLoss, concat("slot pack: ", parts...));
}

int64_t encoded_recurrent_bytes(const LayerState& layer, DType dtype, PackScheme scheme) {
  const bool v_first = layer.layout == StateLayout::kVK;
  const int64_t rows = layer.heads * (v_first ? layer.v_dim : layer.k_dim);
  const int64_t row = encoded_row_bytes(v_first ? layer.k_dim : layer.v_dim, dtype, scheme);
  return round_up(rows * row, kPackAlign);
}

int64_t encoded_window_bytes(const LayerState& layer, DType dtype) {
  return round_up(window_elements(layer) * dtype_bytes(dtype), kPackAlign);
}

// Bytes, offsets and codes that a reader could have expected before it saw the header.
Status check_fixed_fields(const PackHeader& header, int64_t bytes) {
  if (std::memcmp(header.magic, kPackMagic, sizeof(kPackMagic)) != 0) {
    return damaged("magic: expected LNSTSLOT");
  }
  if (header.format_version != kPackFormatVersion) {
    return damaged("format_version: expected ", kPackFormatVersion, ", got ",
                   header.format_version);
  }
  if (header.total_bytes > static_cast<uint64_t>(bytes)) {
    return damaged("total_bytes: the header says ", header.total_bytes, ", the buffer has ", bytes);
  }
  const int64_t most_layers = min_i64((bytes - kHeaderBytes) / kLayerBytes, kMostPackLayers);
  if (header.num_layers < 1 || header.num_layers > most_layers) {
    return damaged("num_layers: expected 1 to ", most_layers, ", the most that fit, got ",
                   header.num_layers);
  }
  return {};
}

Status check_codes(const PackHeader& header) {
  if (header.position < 0) return damaged("position: expected >= 0, got ", header.position);
  if (header.numerics_version > INT32_MAX) {
    return damaged("numerics_version: expected a positive i32, got ", header.numerics_version);
  }
  if (header.state_dtype > 2) {
    return damaged("state_dtype: expected 0 to 2, got ", int{header.state_dtype});
  }
  if (header.window_dtype > 2) {
    return damaged("window_dtype: expected 0 to 2, got ", int{header.window_dtype});
  }
  if (header.scheme > 2) return damaged("scheme: expected 0 to 2, got ", int{header.scheme});
  const bool int8 = header.scheme == static_cast<uint8_t>(PackScheme::kInt8);
  const int64_t group = int8 ? kPackGroup : 0;
  if (header.group != group) return damaged("group: expected ", group, ", got ", header.group);
  if (header.reserved_39 != 0 || header.reserved_44 != 0 || header.reserved_48 != 0) {
    return damaged("reserved: expected zeros in the header");
  }
  return {};
}

Result<LayerState> layer_of(const PackLayer& stored, size_t index) {
  const std::string where = concat("layers[", index, "]");
  if (stored.layout > 1) {
    return damaged(where, ".layout: expected 0 or 1, got ", int{stored.layout});
  }
  for (uint8_t reserved : stored.reserved_5) {
    if (reserved != 0) return damaged(where, ".reserved: expected zeros");
  }
  return LayerState{stored.layer_id, static_cast<StateLayout>(stored.layout),
                    stored.heads,    stored.k_dim,
                    stored.v_dim,    stored.conv_channels,
                    stored.conv_tail};
}

// Places that the header claims against those that its shapes give.
Status check_places(const PackHeader& header, const std::vector<PackLayer>& layers,
                    const PackPlan& plan) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const PackLayer& got = layers[i];
    const PackLayer& want = plan.layers[i];
    const struct {
      const char* name;
      int64_t got;
      int64_t want;
    } fields[] = {{"recurrent_offset", got.recurrent_offset, want.recurrent_offset},
                  {"recurrent_bytes", got.recurrent_bytes, want.recurrent_bytes},
                  {"window_offset", got.window_offset, want.window_offset},
                  {"window_bytes", got.window_bytes, want.window_bytes}};
    for (const auto& field : fields) {
      if (field.got != field.want) {
        return damaged("layers[", i, "].", field.name, ": expected ", field.want, ", got ",
                       field.got);
      }
    }
  }
  if (header.total_bytes != plan.header.total_bytes) {
    return damaged("total_bytes: expected ", plan.header.total_bytes, ", got ", header.total_bytes);
  }
  return {};
}

// Checksums, and zeros behind each window. Rows of a recurrent state fill its place: every head
// dimension is a multiple of 16.
Status check_planes(std::span<const std::byte> buffer, const std::vector<PackLayer>& layers,
                    const PoolSpec& spec) {
  const auto part = [buffer](int64_t offset, int64_t bytes) {
    return crc64(buffer.subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes)));
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    const PackLayer& layer = layers[i];
    if (part(layer.recurrent_offset, layer.recurrent_bytes) != layer.recurrent_checksum) {
      return damaged("layers[", i, "].recurrent: its bytes do not have their checksum");
    }
    if (part(layer.window_offset, layer.window_bytes) != layer.window_checksum) {
      return damaged("layers[", i, "].window: its bytes do not have their checksum");
    }
    const int64_t used = window_elements(spec.layers[i]) * dtype_bytes(spec.window_dtype);
    const auto behind = buffer.subspan(static_cast<size_t>(layer.window_offset + used),
                                       static_cast<size_t>(layer.window_bytes - used));
    if (std::any_of(behind.begin(), behind.end(), [](std::byte b) { return b != std::byte{0}; })) {
      return damaged("layers[", i, "].window: expected zeros behind its values");
    }
  }
  return {};
}

Status check_layers(const PackHeader& header, const std::vector<PackLayer>& layers,
                    PoolSpec& spec) {
  spec.state_dtype = static_cast<DType>(header.state_dtype);
  spec.window_dtype = static_cast<DType>(header.window_dtype);
  for (size_t i = 0; i < layers.size(); ++i) {
    Result<LayerState> layer = layer_of(layers[i], i);
    if (!layer.ok()) return layer.status();
    spec.layers.push_back(*layer);
  }
  if (const Status status = validate(spec); !status.ok()) return damaged(status.message());
  return {};
}

}  // namespace

PackPlan plan_pack(const PoolSpec& spec, PackScheme scheme) {
  PackPlan plan{};
  PackHeader& header = plan.header;
  std::memcpy(header.magic, kPackMagic, sizeof(kPackMagic));
  header.format_version = kPackFormatVersion;
  header.numerics_version = kNumericsVersion;
  header.num_layers = static_cast<uint32_t>(spec.layers.size());
  header.state_dtype = static_cast<uint8_t>(spec.state_dtype);
  header.window_dtype = static_cast<uint8_t>(spec.window_dtype);
  header.scheme = static_cast<uint8_t>(scheme);
  header.group = scheme == PackScheme::kInt8 ? static_cast<uint32_t>(kPackGroup) : 0;
  int64_t offset = kHeaderBytes + kLayerBytes * static_cast<int64_t>(spec.layers.size());
  for (const LayerState& layer : spec.layers) {
    PackLayer stored{};
    stored.layer_id = layer.layer_id;
    stored.layout = static_cast<uint8_t>(layer.layout);
    stored.heads = layer.heads;
    stored.k_dim = layer.k_dim;
    stored.v_dim = layer.v_dim;
    stored.conv_channels = layer.conv_channels;
    stored.conv_tail = layer.conv_tail;
    stored.recurrent_offset = offset;
    stored.recurrent_bytes = encoded_recurrent_bytes(layer, spec.state_dtype, scheme);
    stored.window_offset = offset + stored.recurrent_bytes;
    stored.window_bytes = encoded_window_bytes(layer, spec.window_dtype);
    offset = stored.window_offset + stored.window_bytes;
    plan.layers.push_back(stored);
  }
  header.total_bytes = static_cast<uint64_t>(offset);
  return plan;
}

uint64_t pack_header_checksum(const PackHeader& header, std::span<const std::byte> table) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  return crc64(table, crc64(bytes.first(offsetof(PackHeader, header_checksum))));
}

Result<ParsedPack> parse_pack(std::span<const std::byte> buffer) {
  const auto bytes = static_cast<int64_t>(buffer.size());
  if (bytes < kHeaderBytes) {
    return damaged("header: expected ", kHeaderBytes, " bytes, the buffer has ", bytes);
  }
  PackHeader header;
  std::memcpy(&header, buffer.data(), sizeof(header));
  LINESTATE_RETURN_IF_ERROR(check_fixed_fields(header, bytes));
  ParsedPack pack;
  const auto table = buffer.subspan(sizeof(header), header.num_layers * sizeof(PackLayer));
  if (pack_header_checksum(header, table) != header.header_checksum) {
    return damaged("header_checksum: header and layer table do not have it");
  }
  LINESTATE_RETURN_IF_ERROR(check_codes(header));
  pack.layers.resize(header.num_layers);
  std::memcpy(pack.layers.data(), table.data(), table.size());
  LINESTATE_RETURN_IF_ERROR(check_layers(header, pack.layers, pack.info.spec));
  const auto scheme = static_cast<PackScheme>(header.scheme);
  LINESTATE_RETURN_IF_ERROR(check_places(header, pack.layers, plan_pack(pack.info.spec, scheme)));
  LINESTATE_RETURN_IF_ERROR(check_planes(buffer, pack.layers, pack.info.spec));
  pack.info.position = header.position;
  pack.info.scheme = scheme;
  pack.info.numerics_version = static_cast<int32_t>(header.numerics_version);
  pack.info.total_bytes = static_cast<int64_t>(header.total_bytes);
  return pack;
}

}  // namespace linestate
