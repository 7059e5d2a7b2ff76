// The bytes of a slot pack, as docs/formats/slot_pack.md has them. Little-endian throughout.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "linestate/state/slot_pack.h"
#include "linestate/state_pool.h"
#include "linestate/status.h"

namespace linestate {

inline constexpr char kPackMagic[8] = {'L', 'N', 'S', 'T', 'S', 'L', 'O', 'T'};
inline constexpr uint32_t kPackFormatVersion = 1;
inline constexpr int64_t kPackAlign = 16;          // planes start and end on multiples of it
inline constexpr int64_t kPackGroup = 32;          // values that share a scale
inline constexpr int64_t kMostPackLayers = 65536;  // keeps every sum of sizes far below 2^63

struct PackHeader {
  char magic[8];
  uint32_t format_version;
  uint32_t numerics_version;
  uint64_t total_bytes;
  int64_t position;
  uint32_t num_layers;
  uint8_t state_dtype;
  uint8_t window_dtype;
  uint8_t scheme;
  uint8_t reserved_39;
  uint32_t group;
  uint32_t reserved_44;
  uint64_t reserved_48;
  uint64_t header_checksum;
};

struct PackLayer {
  int32_t layer_id;
  uint8_t layout;
  uint8_t reserved_5[3];
  int64_t heads;
  int64_t k_dim;
  int64_t v_dim;
  int64_t conv_channels;
  int64_t conv_tail;
  int64_t recurrent_offset;
  int64_t recurrent_bytes;
  int64_t window_offset;
  int64_t window_bytes;
  uint64_t recurrent_checksum;
  uint64_t window_checksum;
};

static_assert(std::endian::native == std::endian::little, "the format is written as it lies");
static_assert(sizeof(PackHeader) == 64 && offsetof(PackHeader, header_checksum) == 56);
static_assert(offsetof(PackHeader, position) == 24 && offsetof(PackHeader, group) == 40);
static_assert(sizeof(PackLayer) == 96 && offsetof(PackLayer, heads) == 8);
static_assert(offsetof(PackLayer, recurrent_offset) == 48 &&
              offsetof(PackLayer, recurrent_checksum) == 80);
// Codes of dtype, layout and scheme in the file are those of the enums today, for ever.
static_assert(static_cast<int>(DType::kF32) == 0 && static_cast<int>(DType::kBF16) == 1 &&
              static_cast<int>(DType::kF16) == 2);
static_assert(static_cast<int>(StateLayout::kVK) == 0 && static_cast<int>(StateLayout::kKV) == 1);
static_assert(static_cast<int>(PackScheme::kExact) == 0 &&
              static_cast<int>(PackScheme::kF16) == 1 && static_cast<int>(PackScheme::kInt8) == 2);

/// Header and table of a pack of such a pool: every field but position and the checksums.
/// REQUIRES: spec and scheme are valid.
struct PackPlan {
  PackHeader header;
  std::vector<PackLayer> layers;
};
PackPlan plan_pack(const PoolSpec& spec, PackScheme scheme);

/// Checksum of the header, header_checksum excluded, and the layer table.
uint64_t pack_header_checksum(const PackHeader& header, std::span<const std::byte> table);

/// The checked header and table. Errors: kDataLoss naming the field.
struct ParsedPack {
  SlotPackInfo info;
  std::vector<PackLayer> layers;
};
Result<ParsedPack> parse_pack(std::span<const std::byte> buffer);

}  // namespace linestate
