#include "state/crc64.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "testing/fill.h"

namespace linestate {
namespace {

std::span<const std::byte> bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// One bit at a time, as the definition says.
uint64_t by_definition(std::span<const std::byte> data) {
  uint64_t crc = ~uint64_t{0};
  for (std::byte byte : data) {
    for (int bit = 0; bit < 8; ++bit) {
      const uint64_t feedback = (crc ^ (std::to_integer<uint64_t>(byte) >> bit)) & 1;
      crc = (crc >> 1) ^ (feedback != 0 ? 0xc96c5795d7870f42u : 0);
    }
  }
  return ~crc;
}

TEST(Crc64, CheckValueOfTheCatalogue) {
  EXPECT_EQ(crc64(bytes("123456789")), 0x995dc9bbdf1939fau);
  EXPECT_EQ(crc64({}), 0u);
}

TEST(Crc64, AnyLengthAlignmentAndCut) {
  std::vector<std::byte> data(100);
  testing::Random random(1);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random.next());
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; size + begin <= data.size(); ++size) {
      const auto part = std::span(data).subspan(begin, size);
      ASSERT_EQ(crc64(part), by_definition(part)) << begin << " " << size;
      const size_t cut = size / 3;
      ASSERT_EQ(crc64(part.subspan(cut), crc64(part.first(cut))), crc64(part));
    }
  }
}

}  // namespace
}  // namespace linestate
