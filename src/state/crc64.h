// CRC-64 with the polynomial of ECMA-182 (Annex B), bits reflected, all ones in and out: the
// parameters known as CRC-64/XZ. Finds every burst of up to 64 bits, so every damaged byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace linestate {

/// Checksum of `bytes`; `before` is the checksum of what comes before them.
uint64_t crc64(std::span<const std::byte> bytes, uint64_t before = 0);

}  // namespace linestate
