#include "cli/bench/bench_compare.h"

#include <gtest/gtest.h>

namespace linestate::cli {
namespace {

constexpr const char* kRun =
    R"({"record":"run","clock":"wall","machine":{"name":"box"},"build":{"commit":"abc"},)"
    R"("roofs":[{"threads":1,"copy_bytes_per_second":2e10,"flops_per_second":1e11}]})"
    "\n";

std::string row_line(const char* op, double p10, double median, double p90) {
  return std::string(R"({"record":"row","op":")") + op +
         R"(","model":"m","layout":"1x64","io_dtype":"bf16","state_dtype":"f32",)"
         R"("requested":"auto","heads":2,"value_heads":4,"k_dim":128,"v_dim":128,"threads":1,)"
         R"("median_us":)" +
         std::to_string(median) + R"(,"p10_us":)" + std::to_string(p10) + R"(,"p90_us":)" +
         std::to_string(p90) + "}\n";
}

BenchFile file_of(const std::string& rows) { return *parse_bench_file(kRun + rows, "f"); }

TEST(BenchFile, ReadsRunAndRows) {
  const BenchFile file = file_of(row_line("kda_decode", 9, 10, 11) + "\n");
  EXPECT_EQ(file.machine, "box");
  EXPECT_EQ(file.commit, "abc");
  EXPECT_EQ(file.copy_bytes_per_second, 2e10);
  ASSERT_EQ(file.rows.size(), 1u);
  EXPECT_EQ(file.rows[0].key, "kda_decode m 1x64 bf16 f32 auto 2 4 128 128 1");
  EXPECT_EQ(file.rows[0].timing.median_us, 10.0);
}

TEST(BenchFile, SaysWhichLineIsBad) {
  const std::string good = row_line("a", 1, 2, 3);
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", "f:1: expected a line with \"record\": \"run\""},
      {good, "f:1: expected a line with \"record\": \"run\""},
      {std::string(kRun) + kRun, "f:2: record: a second run"},
      {std::string(kRun) + "{\"record\":", "f:2: "},
      {std::string(kRun) + "{}", "f:2: "},
      {std::string(kRun) + good + good, "f:3: the same case as in an earlier line: a m"},
      {std::string(kRun) + row_line("a", 1, 0, 3), "f:2: median_us: expected a number above 0"},
      {std::string(kRun) + "{\"record\":\"row\",\"op\":3}", "f:2: "},
  };
  for (const auto& test : cases) {
    const Result<BenchFile> file = parse_bench_file(test.text, "f");
    ASSERT_FALSE(file.ok()) << test.text;
    EXPECT_EQ(file.status().code(), StatusCode::kDataLoss);
    EXPECT_EQ(file.status().message().rfind(test.message, 0), 0u) << file.status().message();
  }
}

TEST(BenchFile, AMissingFileIsAnError) {
  EXPECT_EQ(read_bench_file("/nonexistent/x.json").status().code(), StatusCode::kIo);
}

TEST(Judge, BeyondNoiseIsSpreadsThatDoNotTouch) {
  const ComparedTiming before{10.0, 9.0, 12.0};
  EXPECT_EQ(judge(before, {11.0, 10.0, 12.0}), Change::kNoise);
  EXPECT_EQ(judge(before, {13.0, 12.0, 14.0}), Change::kNoise);
  EXPECT_EQ(judge(before, {13.0, 12.1, 14.0}), Change::kSlower);
  EXPECT_EQ(judge(before, {8.0, 7.0, 9.0}), Change::kNoise);
  EXPECT_EQ(judge(before, {8.0, 7.0, 8.9}), Change::kFaster);
}

TEST(Compare, MatchesRowsAndFindsTheWorst) {
  const BenchFile before = file_of(row_line("same", 9, 10, 11) + row_line("slow", 9, 10, 11) +
                                   row_line("noisy", 9, 10, 30) + row_line("gone", 1, 2, 3));
  const BenchFile after = file_of(row_line("slow", 12, 12.5, 13) + row_line("same", 9, 10, 11) +
                                  row_line("noisy", 9, 20, 40) + row_line("new", 1, 2, 3));
  const BenchComparison comparison = compare_bench(before, after);
  EXPECT_EQ(comparison.matched, 3);
  EXPECT_DOUBLE_EQ(comparison.worst_percent, 25.0);
  EXPECT_NE(comparison.text.find("1.250  SLOWER"), std::string::npos) << comparison.text;
  EXPECT_NE(comparison.text.find("2.000  within noise"), std::string::npos);
  EXPECT_NE(comparison.text.find("only before: gone m"), std::string::npos);
  EXPECT_NE(comparison.text.find("only after:  new m"), std::string::npos);
  EXPECT_NE(comparison.text.find("copy bandwidth +0.0%"), std::string::npos);
}

TEST(Compare, FasterIsNeverAFailure) {
  const BenchComparison comparison =
      compare_bench(file_of(row_line("a", 9, 10, 11)), file_of(row_line("a", 1, 2, 3)));
  EXPECT_EQ(comparison.worst_percent, 0.0);
  EXPECT_NE(comparison.text.find("0.200  faster"), std::string::npos);
}

}  // namespace
}  // namespace linestate::cli
