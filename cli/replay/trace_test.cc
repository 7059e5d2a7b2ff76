#include "cli/replay/trace.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace linestate::cli {
namespace {

class TraceFile {
 public:
  explicit TraceFile(const std::string& content)
      : path_(::testing::TempDir() + "trace_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".jsonl") {
    std::ofstream(path_) << content;
  }
  ~TraceFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string line(int64_t timestamp, int64_t input, int64_t output, const std::string& ids) {
  return "{\"timestamp\": " + std::to_string(timestamp) +
         ", \"input_length\": " + std::to_string(input) +
         ", \"output_length\": " + std::to_string(output) + ", \"hash_ids\": [" + ids + "]}\n";
}

TEST(Trace, ReadsRequestsInOrder) {
  const TraceFile file(line(0, 513, 3, "7, 9") + "\n  \t\n" + line(5, 512, 1, "7"));
  const auto trace = read_trace(file.path(), 0);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].input_length, 513);
  EXPECT_EQ((*trace)[0].output_length, 3);
  EXPECT_EQ((*trace)[0].hash_ids, (std::vector<int64_t>{7, 9}));
  EXPECT_EQ((*trace)[1].timestamp_ms, 5);
  EXPECT_EQ((*trace)[1].total_tokens(), 513);
}

TEST(Trace, LimitStopsBeforeLaterLines) {
  const TraceFile file(line(0, 10, 1, "1") + "not json\n");
  const auto trace = read_trace(file.path(), 1);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(trace->size(), 1u);
}

TEST(Trace, EveryBadLineNamesFileLineAndField) {
  const struct {
    const char* bad;
    const char* says;
  } cases[] = {
      {"{\"timestamp\": 0, ", "not JSON"},
      {"[1, 2]", "expected a JSON object, got array"},
      {"{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}", "timestamp: missing"},
      {"{\"timestamp\": 0, \"output_length\": 1, \"hash_ids\": [1]}", "input_length: missing"},
      {"{\"timestamp\": 0, \"input_length\": 1, \"hash_ids\": [1]}", "output_length: missing"},
      {"{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}", "hash_ids: missing"},
      {"{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}",
       "timestamp: expected 0 to"},
      {"{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": [1]}",
       "input_length: expected 1 to 16777216, got 0"},
      {"{\"timestamp\": 0, \"input_length\": -4, \"output_length\": 1, \"hash_ids\": [1]}",
       "input_length: expected 1 to 16777216, got -4"},
      {"{\"timestamp\": 0, \"input_length\": 16777217, \"output_length\": 1, \"hash_ids\": [1]}",
       "input_length: expected 1 to 16777216, got 16777217"},
      {"{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 0, \"hash_ids\": [1]}",
       "output_length: expected 1 to 16777216, got 0"},
      {"{\"timestamp\": 0, \"input_length\": 1.5, \"output_length\": 1, \"hash_ids\": [1]}",
       "input_length: expected an integer, got 1.5"},
      {"{\"timestamp\": 0, \"input_length\": \"9\", \"output_length\": 1, \"hash_ids\": [1]}",
       "input_length: expected an integer, got \"9\""},
      {"{\"timestamp\": 0, \"input_length\": 1e40, \"output_length\": 1, \"hash_ids\": [1]}",
       "input_length: expected an integer"},
      {"{\"timestamp\": 0, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [1]}",
       "hash_ids: expected 2 ids for 513 input tokens, got 1"},
      {"{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": 3}",
       "hash_ids: expected an array of integers, got 3"},
      {"{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [\"a\"]}",
       "hash_ids[0]: expected an integer >= 0, got \"a\""},
      {"{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [-3]}",
       "hash_ids[0]: expected an integer >= 0, got -3"},
  };
  for (const auto& c : cases) {
    const TraceFile file(line(0, 1, 1, "1") + "\n" + c.bad + "\n");
    const auto trace = read_trace(file.path(), 0);
    ASSERT_FALSE(trace.ok()) << c.bad;
    const std::string& message = trace.status().message();
    EXPECT_EQ(message.rfind(file.path() + ":3: ", 0), 0u) << message;
    EXPECT_NE(message.find(c.says), std::string::npos) << message << "\nwanted: " << c.says;
  }
}

TEST(Trace, TimestampsMayNotGoBack) {
  const TraceFile file(line(10, 1, 1, "1") + line(10, 1, 1, "1") + line(9, 1, 1, "1"));
  const auto trace = read_trace(file.path(), 0);
  ASSERT_FALSE(trace.ok());
  EXPECT_NE(trace.status().message().find(":3: timestamp: expected at least 10"), std::string::npos)
      << trace.status().message();
}

TEST(Trace, EmptyMissingAndDirectory) {
  const TraceFile file("\n \n");
  const auto empty = read_trace(file.path(), 0);
  ASSERT_FALSE(empty.ok());
  EXPECT_NE(empty.status().message().find("holds no request"), std::string::npos);
  const auto missing = read_trace(file.path() + ".absent", 0);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("No such file"), std::string::npos);
  const auto directory = read_trace(::testing::TempDir(), 0);
  ASSERT_FALSE(directory.ok());
  EXPECT_NE(directory.status().message().find("directory"), std::string::npos);
}

TEST(Trace, TokenIdsFollowTheBlocks) {
  const TraceRequest a{0, 1024, 4, {7, 8}};
  const TraceRequest b{0, 1030, 4, {7, 9, 10}};
  for (int64_t p = 0; p < 512; ++p) EXPECT_EQ(token_id(a, 0, p), token_id(b, 1, p));
  int64_t equal = 0;
  for (int64_t p = 512; p < 1024; ++p) equal += token_id(a, 0, p) == token_id(b, 1, p) ? 1 : 0;
  EXPECT_EQ(equal, 0);
  // Outputs belong to the request, not to the blocks.
  EXPECT_NE(token_id(a, 0, 1024), token_id(a, 1, 1024));
  EXPECT_EQ(token_id(a, 0, 1025), token_id(a, 0, 1025));
}

}  // namespace
}  // namespace linestate::cli
