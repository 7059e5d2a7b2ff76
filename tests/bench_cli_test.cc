// `linestate bench` from outside: the shape of its JSON, its comparison, its errors.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "testing/json.h"
#include "tests/command_case.h"

namespace linestate {
namespace {

using testing::Json;
using testing::parse_json;

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    Result<Json> json = parse_json(line);
    EXPECT_TRUE(json.ok()) << line;
    if (json.ok()) lines.push_back(std::move(json).value());
  }
  return lines;
}

std::vector<std::string> small_run(const std::string& json) {
  return {"bench",    "--quick", "--model",   "tiny", "--heads", "2",
          "--layout", "3x20",    "--batch",   "2",    "--draft", "3",
          "--ref",    "off",     "--threads", "1",    "--json",  json};
}

// One run for all that only look.
const std::vector<Json>& every_op() {
  static const Folder folder;
  static const std::vector<Json> lines = [] {
    const Outcome outcome = run(small_run(folder.file("all.json")));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("GB/s"), std::string::npos);
    EXPECT_EQ(folder.files(), std::vector<std::string>{"all.json"});
    return json_lines(read_file(folder.file("all.json")));
  }();
  return lines;
}

TEST(BenchCli, TheFirstLineTellsMachineBuildAndRoofs) {
  ASSERT_FALSE(every_op().empty());
  const Json& head = every_op().front();
  EXPECT_EQ(*head.get_string("record"), "run");
  EXPECT_EQ(head.get_string("date")->size(), std::string("2026-11-30T22:10:00Z").size());
  const Json& machine = **head.get("machine");
  for (const char* key : {"device", "name", "features", "cpu", "simd", "fma_target"}) {
    EXPECT_FALSE(machine.get_string(key)->empty()) << key;
  }
  EXPECT_GE(*machine.get_int("logical_cpus"), 1);
  for (const char* key : {"l1d", "l2", "l3"}) {
    EXPECT_NE((**machine.get("caches")).find(key), nullptr) << key;
  }
  EXPECT_NE(machine.find("load_1min"), nullptr);
  const Json& build = **head.get("build");
  for (const char* key : {"version", "description", "flags", "commit"}) {
    EXPECT_FALSE(build.get_string(key)->empty()) << key;
  }
  const Json::Array& roofs = **head.get_array("roofs");
  ASSERT_EQ(roofs.size(), 1u);
  EXPECT_EQ(*roofs[0].get_int("threads"), 1);
  EXPECT_GT(*roofs[0].get_double("copy_bytes_per_second"), 0.0);
  EXPECT_GT(*roofs[0].get_double("flops_per_second"), 0.0);
}

TEST(BenchCli, EveryOperatorAndLayerHasARow) {
  std::vector<std::string> ops;
  for (const Json& line : every_op()) {
    if (*line.get_string("record") == "row" &&
        (ops.empty() || ops.back() != *line.get_string("op"))) {
      ops.push_back(*line.get_string("op"));
    }
  }
  const std::vector<std::string> expected = {"kda_prefill",
                                             "kda_decode",
                                             "kda_verify",
                                             "kda_commit",
                                             "kda_decode_replay",
                                             "lightning_prefill",
                                             "lightning_decode",
                                             "lightning_verify",
                                             "lightning_commit",
                                             "lightning_decode_replay",
                                             "causal_conv1d_prefill",
                                             "causal_conv1d_update",
                                             "causal_conv1d_verify",
                                             "gated_rms_norm",
                                             "group_rms_norm",
                                             "state_clear",
                                             "state_copy",
                                             "kda_layer_extend",
                                             "kda_layer_decode",
                                             "kda_layer_verify",
                                             "lightning_layer_extend",
                                             "lightning_layer_decode",
                                             "lightning_layer_verify"};
  EXPECT_EQ(ops, expected);
}

TEST(BenchCli, RowsAgreeWithThemselves) {
  const Json& roof = (**every_op().front().get_array("roofs"))[0];
  for (const Json& row : every_op()) {
    if (*row.get_string("record") != "row") continue;
    const std::string op = *row.get_string("op");
    const double median = *row.get_double("median_us");
    EXPECT_LE(*row.get_double("least_us"), *row.get_double("p10_us")) << op;
    EXPECT_LE(*row.get_double("p10_us"), median) << op;
    EXPECT_LE(median, *row.get_double("p90_us")) << op;
    EXPECT_GE(*row.get_int("samples"), 3) << op;
    EXPECT_GE(*row.get_int("calls_per_sample"), 1) << op;
    EXPECT_EQ(*row.get_string("kernel"), "cpu") << op;
    EXPECT_EQ(*row.get_string("requested"), "auto") << op;
    EXPECT_NEAR(*row.get_double("us_per_unit") * *row.get_double("units"), median, 1e-6 * median);
    const double rate = *row.get_double("bytes") / median * 1e6;
    EXPECT_NEAR(*row.get_double("bytes_per_second"), rate, 1e-6 * rate) << op;
    EXPECT_NEAR(*row.get_double("copy_ratio"), rate / *roof.get_double("copy_bytes_per_second"),
                1e-6 * *row.get_double("copy_ratio"));
    EXPECT_TRUE(row.find("ref_ratio")->is_null()) << op;
    const bool step = op.find("decode") != std::string::npos ||
                      op.find("update") != std::string::npos || op.starts_with("state_");
    EXPECT_EQ(*row.get_string("unit"), step ? "request-head" : "token-head") << op;
    const bool draft =
        op.find("verify") != std::string::npos || op.find("commit") != std::string::npos;
    EXPECT_EQ(*row.get_string("layout"), step ? "2x1" : draft ? "2x3" : "3x20") << op;
  }
}

TEST(BenchCli, TheRatioToRefIsOfTheSameUnits) {
  const Folder folder;
  const std::string json = folder.file("a.json");
  const Outcome outcome =
      run({"bench", "--quick", "--model", "tiny", "--heads", "2", "--op", "lightning_decode",
           "--batch", "8", "--threads", "1", "--json", json});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<Json> lines = json_lines(read_file(json));
  ASSERT_EQ(lines.size(), 2u);  // of tiny's two Lightning layers the first one counts
  const double ref = *lines[1].get_double("ref_us_per_unit");
  EXPECT_GT(ref, 0.0);
  const double ratio = *lines[1].get_double("ref_ratio");
  EXPECT_NEAR(ratio, ref / *lines[1].get_double("us_per_unit"), 1e-6 * ratio);
}

// Backends size their scratch before they know a batch: what a big one needs must not be more.
TEST(BenchCli, LayersOfManyDraftsFitTheScratchTheyAskedFor) {
  const Outcome outcome =
      run({"bench", "--quick", "--model", "tiny", "--op", "kda_layer_verify,lightning_layer_verify",
           "--batch", "1,64", "--draft", "5", "--threads", "2", "--ref", "off"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

// A suite is a list of cases: what its rows say must be what runs.
TEST(BenchCli, ASuiteRunsItsRows) {
  const Folder folder;
  const std::string json = folder.file("suite.json");
  const Outcome outcome =
      run({"bench", "--quick", "--suite", "peers", "--op", "lightning_decode", "--heads", "8",
           "--threads", "1", "--ref", "off", "--profile", "slow", "--json", json});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<Json> lines = json_lines(read_file(json));
  std::vector<std::string> layouts;
  for (size_t i = 1; i < lines.size(); ++i) {
    layouts.push_back(*lines[i].get_string("layout"));
    EXPECT_EQ(*lines[i].get_int("value_heads"), 8);
    EXPECT_EQ(*lines[i].get_string("profile"), "slow");
    EXPECT_EQ(*lines[i].get_string("gate"), "-");
  }
  EXPECT_EQ(layouts, (std::vector<std::string>{"1x1", "8x1", "32x1", "64x1", "128x1", "256x1"}));
}

TEST(BenchCli, GatesAndRingsAreAsAskedFor) {
  const Folder folder;
  const std::string json = folder.file("ring.json");
  for (const char* gate : {"bounded", "softplus", "activated"}) {
    const Outcome outcome =
        run({"bench",        "--quick", "--model", "tiny", "--op",      "kda_decode_replay",
             "--heads",      "2",       "--batch", "3",    "--ring",    "4",
             "--ring-dtype", "f16",     "--gate",  gate,   "--threads", "1",
             "--ref",        "off",     "--json",  json});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::vector<Json> lines = json_lines(read_file(json));
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(*lines[1].get_string("gate"), gate);
    EXPECT_EQ(*lines[1].get_int("ring_length"), 4);
    EXPECT_EQ(*lines[1].get_string("ring_dtype"), "f16");
  }
}

TEST(BenchCli, ComparesTwoFiles) {
  const Folder folder;
  std::vector<std::string> args = {"bench", "--quick", "--model",          "tiny",    "--heads",
                                   "2",     "--op",    "lightning_decode", "--batch", "2,8",
                                   "--ref", "off",     "--threads",        "1",       "--json"};
  args.push_back(folder.file("a.json"));
  ASSERT_EQ(run(args).code, 0);
  const std::string a = folder.file("a.json");
  const Outcome same = run({"bench", "--compare", a, a, "--fail-above", "0"});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_NE(same.out.find("1.000  within noise"), std::string::npos) << same.out;

  std::string slow;
  for (Json& line : json_lines(read_file(a))) {
    for (const char* key : {"median_us", "p10_us", "p90_us"}) {
      if (line.find(key) != nullptr) line.set(key, 100.0 * *line.get_double(key));
    }
    slow += dump_json(line) + "\n";
  }
  const std::string b = folder.write("b.json", slow);
  const Outcome told = run({"bench", "--compare", a, b});
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_NE(told.out.find("100.000  SLOWER"), std::string::npos) << told.out;
  const Outcome failed = run({"bench", "--compare", a, b, "--fail-above", "9000"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_NE(failed.err.find("slower by 9900.0 percent"), std::string::npos) << failed.err;
  EXPECT_EQ(run({"bench", "--compare", a, b, "--fail-above", "10000"}).code, 0);
  EXPECT_EQ(run({"bench", "--compare", b, a, "--fail-above", "0"}).code, 0);
  args.insert(args.begin() + 1, {"--clock", "cpu"});
  args.back() = folder.file("c.json");
  ASSERT_EQ(run(args).code, 0);
  EXPECT_EQ(run({"bench", "--compare", a, folder.file("c.json")}).code, 2);
}

TEST(BenchCli, BadArgumentsSayWhatIsExpected) {
  const Folder folder;
  const struct {
    std::vector<std::string> args;
    const char* says;
  } cases[] = {
      {{"--op", "nope"}, "--op: expected one of all, kda_prefill"},
      {{"--model", "gpt"}, "model: expected one of tiny"},
      {{"--model", "kimi-linear", "--op", "lightning_decode"}, "--op, --model: no layer"},
      {{"--heads", "-1"}, "--heads: expected 0 to 4096, got -1"},
      {{"--heads", "3", "--model", "tiny"}, "--heads: expected a multiple of 2"},
      {{"--heads", "x"}, "--heads"},
      {{"--layout", "8*1024"}, "--layout: expected ROWSxTOKENS"},
      {{"--batch", "0"}, "--batch: expected 1 to 4096, got 0"},
      {{"--draft", "257"}, "--draft: expected 1 to 256, got 257"},
      {{"--threads", "2000"}, "--threads: expected 0 to 1024"},
      {{"--kernel", "magic"}, "--kernel: expected one of"},
      {{"--device", "tpu"}, "--device: expected cpu, cuda, cuda:I or auto, got tpu"},
      {{"--suite", "nope"}, "--suite: expected peers, rest or all, got nope"},
      {{"--gate", "none"}, "--gate: expected model, bounded, softplus or activated, got none"},
      {{"--profile", "correlated"}, "--profile: expected plain, slow, strong or mixed"},
      {{"--ring", "0"}, "--ring: expected 1 to 64, got 0"},
      {{"--ring-dtype", "bf16"}, "--ring-dtype: expected f32 or f16, got bf16"},
      {{"--io-dtype", "f8"}, "--io-dtype: expected f32, bf16 or f16, got f8"},
      {{"--state-dtype", "i8"}, "--state-dtype: expected f32, bf16 or f16, got i8"},
      {{"--ref", "maybe"}, "--ref: expected on or off, got maybe"},
      {{"--clock", "sun"}, "--clock: expected wall or cpu, got sun"},
      {{"--clock", "cpu"}, "--clock: expected --threads 1 with cpu"},
      {{"--fail-above", "3"}, "--fail-above: expected --compare with it"},
      {{"--json", "/nonexistent/folder/x.json"}, "cannot write /nonexistent/folder/x.json"},
      {{"--compare", "/nonexistent/a", "/nonexistent/b"}, "cannot read /nonexistent/a"},
      {{"--compare", "only-one"}, "--compare"},
      {{"surplus"}, "surplus"},
  };
  for (const auto& test : cases) {
    std::vector<std::string> args{"bench"};
    args.insert(args.end(), test.args.begin(), test.args.end());
    expect_error(run(args), 2, test.says);
  }
}

TEST(BenchCli, AFailingCaseLeavesNoFile) {
  const Folder folder;
  const std::string old = folder.write("r.json", "old\n");
  // Rows of more memory than any machine has, found before anything is allocated.
  const Outcome outcome = run({"bench", "--quick", "--op", "kda_decode", "--heads", "4096",
                               "--batch", "4096", "--threads", "1", "--json", old});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("bytes and the machine has"), std::string::npos) << outcome.err;
  EXPECT_EQ(read_file(old), "old\n");
  EXPECT_EQ(folder.files().size(), 1u);
}

TEST(BenchCli, InterruptedLeavesNoFile) {
  const Folder folder;
  std::vector<std::string> args = {"bench", "--model", "tiny",   "--threads",          "1",
                                   "--ref", "off",     "--json", folder.file("x.json")};
  How how;
  how.signal = SIGINT;
  how.seconds_later = 1.5;
  const Outcome outcome = run(args, how);
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find("interrupted"), std::string::npos);
  EXPECT_TRUE(folder.files().empty());
}

}  // namespace
}  // namespace linestate
