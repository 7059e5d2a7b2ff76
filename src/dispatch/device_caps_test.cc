#include <gtest/gtest.h>
#include <omp.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/cuda_devices.h"
#include "linestate/device.h"
#include "linestate/version.h"

namespace linestate {
namespace {

bool built_with_cuda() {
  return std::string(build_description()).find("cuda") != std::string::npos;
}

TEST(DeviceCaps, CpuComesFirst) {
  const std::vector<DeviceInfo> devices = list_devices();
  ASSERT_FALSE(devices.empty());
  const DeviceInfo& cpu = devices.front();
  EXPECT_EQ(cpu.device, (Device{DeviceType::kCpu, 0}));
  EXPECT_FALSE(cpu.name.empty());
  EXPECT_EQ(cpu.threads, omp_get_max_threads());
  EXPECT_GT(cpu.memory_bytes, int64_t{1} << 20);
}

TEST(DeviceCaps, FeaturesAgreeWithTheCompilersProbe) {
#if defined(__x86_64__)
  const std::string padded = " " + list_devices().front().features + " ";
  EXPECT_EQ(padded.find(" avx2 ") != std::string::npos, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(padded.find(" avx512f ") != std::string::npos, __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(padded.find(" sse2 "), std::string::npos)
      << "a flag that is not of the list: " << padded;
#else
  EXPECT_EQ(list_devices().front().features.find("avx"), std::string::npos);
#endif
}

TEST(DeviceCaps, SimdTargetIsOneThatTheCpuHas) {
  const DeviceInfo cpu = list_devices().front();
  EXPECT_FALSE(cpu.simd.empty());
#if defined(__x86_64__)
  // AVX2 with Highway means Haswell: fused multiply-add and half floats too.
  const bool haswell = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                       __builtin_cpu_supports("bmi2") != 0;
  EXPECT_EQ(cpu.simd == "AVX2" || cpu.simd == "AVX3", haswell) << cpu.simd;
  EXPECT_TRUE(cpu.simd != "AVX3" || cpu.features.find("avx512f") != std::string::npos);
#endif
}

TEST(DeviceCaps, NoteSaysWhyThereIsNoGpu) {
  const std::vector<DeviceInfo> devices = list_devices();
  const std::string note = cuda_note();
  EXPECT_EQ(note.empty(), devices.size() > 1) << note;
  if (!built_with_cuda()) {
    EXPECT_EQ(note, "built without CUDA");
    EXPECT_EQ(list_cuda_devices().status().code(), StatusCode::kUnsupported);
  } else if (devices.size() == 1) {
    EXPECT_NE(note.find("cudaGetDeviceCount: "), std::string::npos) << note;
  }
  EXPECT_EQ(cuda_note(), note) << "asking twice gives another answer";
}

TEST(DeviceCaps, EveryFurtherDeviceIsCudaInOrder) {
  const std::vector<DeviceInfo> devices = list_devices();
  for (size_t i = 1; i < devices.size(); ++i) {
    EXPECT_EQ(devices[i].device, (Device{DeviceType::kCuda, static_cast<int32_t>(i) - 1}));
    EXPECT_TRUE(devices[i].features.starts_with("sm_")) << devices[i].features;
    EXPECT_EQ(devices[i].simd, "");
  }
  EXPECT_EQ(devices.size() > 1, list_cuda_devices().ok());
}

// In a process of its own: the runtime reads the variable once, at its first call.
TEST(DeviceCapsDeathTest, HiddenGpusAreNoCrash) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("CUDA_VISIBLE_DEVICES", "", 1);
        const bool alone = list_devices().size() == 1 && !cuda_note().empty();
        std::_Exit(alone ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace linestate
