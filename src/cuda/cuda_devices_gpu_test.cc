#include <gtest/gtest.h>

#include "cuda/cuda_devices.h"

namespace linestate {
namespace {

TEST(CudaDevicesGpu, ListsTheDevices) {
  const Result<std::vector<CudaDevice>> devices = list_cuda_devices();
  ASSERT_TRUE(devices.ok()) << devices.status().to_string();
  ASSERT_FALSE(devices->empty());
  for (const CudaDevice& device : *devices) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GE(device.sm, 50);
    EXPECT_GT(device.memory_bytes, int64_t{1} << 30);
  }
}

}  // namespace
}  // namespace linestate
