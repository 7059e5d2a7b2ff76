#include "cli/report/report.h"

#include <gtest/gtest.h>

#include <string>

#include "testing/json.h"

namespace linestate::cli {
namespace {

ReplaySettings some_settings() {
  ReplaySettings settings;
  settings.options.trace = "a \"quoted\" trace.jsonl";
  settings.options.verify = 1.0;
  settings.model = model_preset("tiny").value();
  return settings;
}

ReplayResult some_result() {
  ReplayResult result;
  result.requests = 3;
  result.input_tokens = 1200;
  result.output_tokens = 34;
  result.wall_s = 2.5;
  result.backend_s = 0.5;
  result.queue = {0.0, 1.0, 7.0};
  result.steps = {{0.1, 2, 1000, 0, 0.40, 0}, {0.2, 3, 200, 2, 0.08, 2}, {0.3, 1, 0, 1, 0.02, 1}};
  result.slots = 4;
  result.bytes_per_slot = 4096;
  result.verify.requests = 3;
  result.verify.output = {1.6e-3, 1.7e-3, 2, 4, 1};
  result.verify.state = {3e-6, 5e-5, 1, 0, 3};
  return result;
}

TEST(Result, PercentilesAreNearestRank) {
  EXPECT_EQ(percentile({}, {}, 0.5), 0.0);
  EXPECT_EQ(percentile({3.0, 1.0, 2.0}, {}, 0.5), 2.0);
  EXPECT_EQ(percentile({3.0, 1.0, 2.0}, {}, 0.99), 3.0);
  EXPECT_EQ(percentile({1.0, 9.0}, {99, 1}, 0.99), 1.0);
  EXPECT_EQ(percentile({1.0, 9.0}, {98, 2}, 0.99), 9.0);
}

TEST(Result, Summary) {
  const ReplayNumbers numbers = summarize(some_result());
  EXPECT_DOUBLE_EQ(numbers.tokens_per_s, 1234.0 / 0.5);
  EXPECT_DOUBLE_EQ(numbers.tpot_p50_s, 0.08);  // two of three decode tokens
  EXPECT_DOUBLE_EQ(numbers.occupancy_mean, 0.5);
  EXPECT_DOUBLE_EQ(numbers.occupancy_max, 0.75);
  EXPECT_DOUBLE_EQ(numbers.queue_p50, 1.0);
  EXPECT_DOUBLE_EQ(numbers.queue_p99, 7.0);
}

TEST(Result, AStepIsSharedByTheTokensOfARow) {
  ReplayResult result;
  result.steps = {{0.1, 2, 0, 6, 0.3, 2}};
  EXPECT_DOUBLE_EQ(summarize(result).tpot_p50_s, 0.1);
}

TEST(Report, TableSaysWhatWasMeasured) {
  const std::string table = report_table(some_settings(), some_result());
  for (const char* part :
       {"requests", "1 200", "tokens per second", "2468", "p50 80.000 ms", "p99 7 steps",
        "mean 50.0 %, max 75.0 %", "4 096 (4.00 KiB)", "3 of 3",
        "1.600e-03 (limit 1.700e-03; request 2, layer 4, head 1)", "passed", "clean"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
}

TEST(Report, JsonHasTheSameNumbers) {
  const std::string text = report_json(some_settings(), some_result());
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(text.find('\n'), text.size() - 1) << "one line";
  const auto json = testing::parse_json(text);
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_EQ(json->get_int("requests").value(), 3);
  EXPECT_EQ(json->get_string("model").value(), "tiny");
  EXPECT_DOUBLE_EQ(json->get_double("tokens_per_s").value(), 2468.0);
  EXPECT_EQ(json->find("options")->get_string("trace").value(), "a \"quoted\" trace.jsonl");
  const testing::Json* verification = json->find("verification");
  ASSERT_NE(verification, nullptr);
  EXPECT_TRUE(verification->get_bool("passed").value());
  EXPECT_EQ(verification->find("output")->get_int("head").value(), 1);
  EXPECT_FALSE(json->get_string("build").value().empty());
}

TEST(Report, FailureNamesTheWorstPlace) {
  ReplayResult result = some_result();
  result.verify.failures = 2;
  result.verify.output.error = 0.25;
  const std::string failure = result.verify.failure();
  EXPECT_NE(failure.find("2 places"), std::string::npos) << failure;
  EXPECT_NE(failure.find("worst output: request 2, layer 4, head 1"), std::string::npos) << failure;
  EXPECT_EQ(failure.find("worst state"), std::string::npos) << failure;
}

TEST(Report, Numbers) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1234567), "1 234 567");
  EXPECT_EQ(count_text(-123456), "-123 456");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(3 * 1024 * 1024 / 2), "1.50 MiB");
}

}  // namespace
}  // namespace linestate::cli
