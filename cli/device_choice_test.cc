#include "cli/device_choice.h"

#include <gtest/gtest.h>

#include <string>

#include "linestate/device.h"

namespace linestate::cli {
namespace {

bool has_gpu() { return cuda_note().empty(); }

TEST(DeviceChoice, NamesTheCpu) {
  const Result<DeviceChoice> choice = choose_device("cpu", "auto");
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->device, Device{});
  EXPECT_EQ(choice->text, "cpu");
}

TEST(DeviceChoice, AutoSaysWhatItTookAndWhy) {
  const Result<DeviceChoice> choice = choose_device("auto", "auto");
  ASSERT_TRUE(choice.ok());
  const char* start = has_gpu() ? "cuda:" : "cpu (no usable GPU: ";
  EXPECT_TRUE(choice->text.starts_with(start)) << choice->text;
}

TEST(DeviceChoice, AutoGoesWhereTheKernelIs) {
  EXPECT_EQ(choose_device("auto", "ref")->text, "cpu (kernel ref runs nowhere else)");
}

TEST(DeviceChoice, RefusesByName) {
  for (const char* option : {"tpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", ""}) {
    EXPECT_EQ(choose_device(option, "auto").status().message(),
              std::string("--device: expected cpu, cuda, cuda:I or auto, got ") + option);
  }
  const Status none = choose_device("cuda:77", "auto").status();
  EXPECT_EQ(none.code(), has_gpu() ? StatusCode::kInvalidArgument : StatusCode::kUnsupported);
  EXPECT_NE(none.message().find("cuda:77"), std::string::npos);
}

}  // namespace
}  // namespace linestate::cli
