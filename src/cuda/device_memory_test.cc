#include "linestate/device_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "base/device_status.h"

namespace linestate {
namespace {

TEST(DeviceMemory, CpuMemoryIsAlignedAndCopies) {
  Result<DeviceMemory> memory = DeviceMemory::allocate({}, 100);
  ASSERT_TRUE(memory.ok()) << memory.status().to_string();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 256, 0u);
  EXPECT_EQ(memory->bytes(), 100);
  ASSERT_TRUE(fill_bytes({memory->data(), {}}, 0x5a, 100).ok());
  std::array<uint8_t, 100> seen{};
  ASSERT_TRUE(copy_bytes({seen.data(), {}}, {memory->data(), {}}, 100).ok());
  for (const uint8_t byte : seen) EXPECT_EQ(byte, 0x5a);
}

TEST(DeviceMemory, ZeroBytesAreANullPointer) {
  Result<DeviceMemory> memory = DeviceMemory::allocate({}, 0);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->data(), nullptr);
}

TEST(DeviceMemory, RefusesWhatItCannotHave) {
  EXPECT_EQ(DeviceMemory::allocate({}, -1).status().message(), "bytes: expected >= 0, got -1");
  EXPECT_EQ(DeviceMemory::allocate({}, INT64_MAX - 1).status().code(),
            StatusCode::kResourceExhausted);
  const Device external{DeviceType::kExternal, 1};
  EXPECT_EQ(DeviceMemory::allocate(external, 8).status().message(),
            "device: expected cpu or cuda, got external:1");
  EXPECT_EQ(DeviceStream::create(external).status().code(), StatusCode::kUnsupported);
}

TEST(DeviceMemory, MoveLeavesTheOtherEmptyHanded) {
  Result<DeviceMemory> memory = DeviceMemory::allocate({}, 64);
  ASSERT_TRUE(memory.ok());
  void* data = memory->data();
  DeviceMemory moved = std::move(memory).value();
  EXPECT_EQ(moved.data(), data);
  DeviceMemory again;
  again = std::move(moved);
  EXPECT_EQ(again.data(), data);
  EXPECT_EQ(again.bytes(), 64);
}

TEST(DeviceStatusBlock, StartsCleanKeepsFlagsAndResets) {
  Result<DeviceStatusBlock> block = DeviceStatusBlock::create({});
  ASSERT_TRUE(block.ok()) << block.status().to_string();
  DeviceStatus seen;
  ASSERT_TRUE(block->read(seen).ok());
  EXPECT_EQ(seen.describe(), "");
  raise_flag(block->get(), DeviceFlag::kBadOffsets, 7);
  ASSERT_TRUE(block->read(seen).ok());
  EXPECT_TRUE(seen.raised(DeviceFlag::kBadOffsets));
  EXPECT_EQ(seen.row_of(DeviceFlag::kBadOffsets), 7);
  ASSERT_TRUE(block->reset().ok());
  ASSERT_TRUE(block->read(seen).ok());
  EXPECT_EQ(seen.describe(), "");
}

}  // namespace
}  // namespace linestate
