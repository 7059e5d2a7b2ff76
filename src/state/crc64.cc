#include "state/crc64.h"

#include <array>
#include <cstring>

namespace linestate {
namespace {

// The polynomial 0x42F0E1EBA9EA3693 of ECMA-182, bits reversed.
constexpr uint64_t kPolynomial = 0xc96c5795d7870f42u;
constexpr size_t kLanes = 8;  // bytes a step
using Tables = std::array<std::array<uint64_t, 256>, kLanes>;

// tables[j][b]: what byte b does to the checksum once j more bytes have passed.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint64_t byte = 0; byte < 256; ++byte) {
    uint64_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t lane = 1; lane < kLanes; ++lane) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint64_t crc = tables[lane - 1][byte];
      tables[lane][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint64_t crc64(std::span<const std::byte> bytes, uint64_t before) {
  uint64_t crc = ~before;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= kLanes; left -= kLanes, at += kLanes) {
    uint64_t word = 0;
    std::memcpy(&word, at, kLanes);
    word ^= crc;
    crc = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      crc ^= kTables[kLanes - 1 - lane][(word >> (8 * lane)) & 0xff];
    }
  }
  for (; left > 0; --left, ++at) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<uint64_t>(*at)) & 0xff];
  }
  return ~crc;
}

}  // namespace linestate
