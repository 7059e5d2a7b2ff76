#include "cli/report/plot.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "cli/report/plot_file.h"

namespace linestate::cli {
namespace {

ReplayResult run_of(int64_t steps) {
  ReplayResult result;
  result.slots = 16;
  for (int64_t i = 0; i < steps; ++i) {
    result.steps.push_back({0.01 * static_cast<double>(i + 1), 1 + i % 16, 100, 4, 0.002});
  }
  return result;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Plot, ThreePanelsWithUnitsAndClosedTags) {
  ReplaySettings settings;
  settings.options.model = "tiny";
  const std::string svg = plot_svg(settings, run_of(120));
  for (const char* part : {"Running requests (requests)", "Throughput (tokens/s)",
                           "Pool occupancy (% of slots)", ">step<", "linestate replay: tiny"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(count_of(svg, "<text"), count_of(svg, "</text>"));
  EXPECT_EQ(count_of(svg, "<svg"), 1u);
  EXPECT_EQ(count_of(svg, "</svg>"), 1u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(Plot, SecondsWhenTheClockRuns) {
  ReplaySettings settings;
  settings.options.speed = 2.0;
  EXPECT_NE(plot_svg(settings, run_of(5)).find(">time (s)<"), std::string::npos);
}

TEST(Plot, LongRunsStaySmallAndShortOnesDraw) {
  const ReplaySettings settings;
  EXPECT_LT(plot_svg(settings, run_of(200000)).size(), 120000u);
  for (const int64_t steps : {0, 1, 2}) {
    const std::string svg = plot_svg(settings, run_of(steps));
    EXPECT_EQ(svg.find("nan"), std::string::npos) << steps;
    EXPECT_NE(svg.find("</svg>"), std::string::npos);
  }
}

TEST(Plot, TextIsEscaped) {
  ReplaySettings settings;
  settings.options.model = "a<b&\"c";
  const std::string svg = plot_svg(settings, run_of(3));
  EXPECT_NE(svg.find("a&lt;b&amp;&quot;c"), std::string::npos);
  EXPECT_EQ(svg.find("a<b"), std::string::npos);
}

TEST(Plot, NiceSteps) {
  EXPECT_DOUBLE_EQ(nice_step(16.0, 4), 5.0);
  EXPECT_DOUBLE_EQ(nice_step(100.0, 5), 20.0);
  EXPECT_DOUBLE_EQ(nice_step(0.03, 3), 0.01);
  EXPECT_DOUBLE_EQ(nice_step(7.0, 10), 1.0);
}

TEST(PlotFile, WholeOrNotAtAll) {
  const std::string directory = ::testing::TempDir() + "plot_file_test";
  mkdir(directory.c_str(), 0755);
  const std::string path = directory + "/a.svg";
  ASSERT_TRUE(check_writable(path).ok());
  EXPECT_FALSE(std::ifstream(path).good()) << "checking creates nothing";
  ASSERT_TRUE(write_whole_file(path, "first").ok());
  ASSERT_TRUE(write_whole_file(path, "second").ok());
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  EXPECT_EQ(content.str(), "second");
  std::remove(path.c_str());
  EXPECT_EQ(std::remove(directory.c_str()), 0) << "no temporary file is left";
}

TEST(PlotFile, ErrorsNameThePathAndTheReason) {
  const Status missing = check_writable(::testing::TempDir() + "absent/a.svg");
  EXPECT_EQ(missing.code(), StatusCode::kIo);
  EXPECT_NE(missing.message().find("absent/a.svg: No such file"), std::string::npos)
      << missing.message();
  const Status directory = check_writable(::testing::TempDir());
  EXPECT_NE(directory.message().find("directory"), std::string::npos) << directory.message();
}

}  // namespace
}  // namespace linestate::cli
