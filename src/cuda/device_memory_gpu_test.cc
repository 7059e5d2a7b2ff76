#include <gtest/gtest.h>

#include <vector>

#include "linestate/device_memory.h"

namespace linestate {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};

TEST(DeviceMemoryGpu, CopiesThereAndBack) {
  Result<DeviceMemory> memory = DeviceMemory::allocate(kGpu, 1000);
  ASSERT_TRUE(memory.ok()) << memory.status().to_string();
  Result<DeviceStream> stream = DeviceStream::create(kGpu);
  ASSERT_TRUE(stream.ok()) << stream.status().to_string();
  ASSERT_TRUE(fill_bytes({memory->data(), kGpu}, 7, 1000, stream->handle()).ok());
  const std::vector<char> sent(400, 9);
  ASSERT_TRUE(copy_bytes({memory->data(), kGpu}, {sent.data(), {}}, 400, stream->handle()).ok());
  std::vector<char> seen(1000);
  ASSERT_TRUE(copy_bytes({seen.data(), {}}, {memory->data(), kGpu}, 1000, stream->handle()).ok());
  for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], i < 400 ? 9 : 7) << i;
  EXPECT_TRUE(synchronize(kGpu, stream->handle()).ok());
}

TEST(DeviceMemoryGpu, TooMuchIsNamed) {
  const Result<DeviceMemory> memory = DeviceMemory::allocate(kGpu, int64_t{1} << 46);
  EXPECT_EQ(memory.status().message(), "cannot allocate 70368744177664 bytes on cuda:0");
  EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
}

TEST(DeviceMemoryGpu, ADeviceThatIsNotThereIsAnError) {
  const Result<DeviceMemory> memory = DeviceMemory::allocate({DeviceType::kCuda, 4096}, 8);
  EXPECT_EQ(memory.status().code(), StatusCode::kDevice);
  EXPECT_NE(memory.status().message().find("cudaSetDevice"), std::string::npos);
}

TEST(DeviceStatusBlockGpu, StartsClean) {
  Result<DeviceStatusBlock> block = DeviceStatusBlock::create(kGpu);
  ASSERT_TRUE(block.ok()) << block.status().to_string();
  DeviceStatus seen;
  seen.flags = 5;
  ASSERT_TRUE(block->read(seen).ok());
  EXPECT_EQ(seen.describe(), "");
}

}  // namespace
}  // namespace linestate
