// The slot pack reader. Whatever the bytes: no read outside them, and a slot that is not taken
// whole stays as it was. Inputs are also tried with their checksums put right, since no search
// finds a CRC.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "linestate/state/slot_pack.h"
#include "state/crc64.h"
#include "state/slot_pack_format.h"

namespace {

using linestate::PackHeader;
using linestate::PackLayer;
using Bytes = std::vector<std::byte>;

linestate::StatePool make_pool() {
  linestate::PoolSpec spec;
  spec.state_dtype = linestate::DType::kF16;
  spec.layers.push_back({0, linestate::StateLayout::kVK, 1, 48, 16, 3, 3});
  spec.layers.push_back({1, linestate::StateLayout::kKV, 1, 16, 16, 0, 0});
  return *linestate::StatePool::create(spec, 1);
}

const linestate::StatePool& pool() {
  static const linestate::StatePool made = make_pool();
  return made;
}

void fill(int value) {
  for (const linestate::TensorView& plane : pool().planes()) {
    std::memset(plane.data, value,
                static_cast<size_t>(plane.num_elements() * dtype_bytes(plane.dtype)));
  }
}

bool filled_with(int value) {
  for (const linestate::TensorView& plane : pool().planes()) {
    const auto* bytes = static_cast<const unsigned char*>(plane.data);
    const int64_t count = plane.num_elements() * dtype_bytes(plane.dtype);
    if (!std::all_of(bytes, bytes + count, [value](int byte) { return byte == value; })) {
      return false;
    }
  }
  return true;
}

void must(bool holds) {
  if (!holds) std::abort();
}

void try_bytes(const Bytes& bytes) {
  linestate::UnpackOptions options;
  options.allow_other_numerics = options.allow_state_dtype_change = true;
  const linestate::Result<linestate::SlotPackInfo> info = linestate::read_slot_pack(bytes);
  must(info.ok() || info.status().code() == linestate::StatusCode::kDataLoss);
  fill(0x5a);
  const linestate::Result<int64_t> position = linestate::unpack_slot(bytes, pool(), 0, options);
  if (!position.ok()) return must(filled_with(0x5a));
  must(info.ok() && *position == info->position);
  Bytes again(static_cast<size_t>(*linestate::slot_pack_bytes(pool().spec(), info->scheme)));
  const auto exact = linestate::PackScheme::kExact;
  if (info->scheme != exact || info->spec.state_dtype != pool().spec().state_dtype) return;
  must(linestate::pack_slot(pool(), 0, *position, exact, again).ok());
  // The same planes; the header differs at most in the numerics version and its own checksum.
  const size_t table = sizeof(PackHeader) + 2 * sizeof(PackLayer);
  must(std::equal(again.begin() + static_cast<ptrdiff_t>(table), again.end(),
                  bytes.begin() + static_cast<ptrdiff_t>(table)));
}

void fix_checksums(Bytes& bytes) {
  if (bytes.size() < sizeof(PackHeader)) return;
  PackHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const size_t rest = bytes.size() - sizeof(header);
  if (header.num_layers > rest / sizeof(PackLayer)) return;
  for (uint32_t i = 0; i < header.num_layers; ++i) {
    std::byte* at = bytes.data() + sizeof(header) + i * sizeof(PackLayer);
    PackLayer layer;
    std::memcpy(&layer, at, sizeof(layer));
    auto sum = [&](int64_t offset, int64_t size) -> uint64_t {
      const auto total = static_cast<int64_t>(bytes.size());
      if (offset < 0 || size < 0 || offset > total || size > total - offset) return 0;
      return linestate::crc64({bytes.data() + offset, static_cast<size_t>(size)});
    };
    layer.recurrent_checksum = sum(layer.recurrent_offset, layer.recurrent_bytes);
    layer.window_checksum = sum(layer.window_offset, layer.window_bytes);
    std::memcpy(at, &layer, sizeof(layer));
  }
  const std::span<const std::byte> table(bytes.data() + sizeof(header),
                                         header.num_layers * sizeof(PackLayer));
  header.header_checksum = linestate::pack_header_checksum(header, table);
  std::memcpy(bytes.data(), &header, sizeof(header));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  try_bytes(bytes);
  fix_checksums(bytes);
  try_bytes(bytes);
  return 0;
}
