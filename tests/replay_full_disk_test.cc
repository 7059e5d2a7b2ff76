// The built command where a file may not grow any further, which is how a full disk is played here.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "tests/command_case.h"

namespace linestate {
namespace {

TEST(ReplayFullDisk, ThePlotIsAnErrorAndLeavesNoFile) {
  const Folder folder;
  const std::string trace = folder.write(
      "t.jsonl",
      "{\"timestamp\": 0, \"input_length\": 130, \"output_length\": 5, \"hash_ids\": [1]}\n"
      "{\"timestamp\": 20, \"input_length\": 70, \"output_length\": 9, \"hash_ids\": [1]}\n");
  How how;
  how.in_child = [] {
    constexpr rlim_t kBytes = 2048;  // less than the drawing, more than the message
    const rlimit limit{kBytes, kBytes};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  const std::string plot = folder.file("p.svg");
  expect_error(run({"replay", trace, "--plot", plot}, how), 2, "cannot write " + plot + ": File");
  EXPECT_EQ(folder.files(), std::vector<std::string>{"t.jsonl"});
  folder.write("p.svg", "older");
  expect_error(run({"replay", trace, "--plot", plot}, how), 2, "cannot write " + plot);
  EXPECT_EQ(read_file(plot), "older");
  EXPECT_EQ(folder.files().size(), 2u);
}

}  // namespace
}  // namespace linestate
