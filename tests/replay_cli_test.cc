// The built command from outside: exit codes, messages, files, signals.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "testing/json.h"
#include "tests/command_case.h"

namespace linestate {
namespace {

std::string request(int64_t timestamp, int64_t input, int64_t output, const std::string& ids) {
  std::ostringstream line;
  line << "{\"timestamp\": " << timestamp << ", \"input_length\": " << input
       << ", \"output_length\": " << output << ", \"hash_ids\": [" << ids << "]}\n";
  return line.str();
}

std::string mini_trace() {
  return request(0, 130, 5, "1") + request(20, 70, 9, "1") + request(40, 1, 3, "2") +
         request(40, 200, 2, "3");
}

TEST(ReplayCli, TableAndVerification) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", mini_trace());
  const Outcome outcome = run({"replay", trace, "--verify", "1.0", "--prefill-budget", "100"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"verified requests         4 of 4 (420 tokens)", "passed", "clean",
                           "tokens per second", "bytes per slot", "worst state error"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
}

TEST(ReplayCli, JsonForEveryPoolAndIoDtype) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", mini_trace());
  for (const char* io : {"bf16", "f16", "f32"}) {
    for (const char* state : {"f32", "bf16", "f16"}) {
      const Outcome outcome =
          run({"replay", trace, "--verify", "1", "--json", "--io-dtype", io, "--state-dtype", state,
               "--prefill-budget", "96", "--threads", "1"});
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_EQ(outcome.err, "");
      const auto json = testing::parse_json(outcome.out);
      ASSERT_TRUE(json.ok()) << outcome.out;
      const testing::Json* verification = json->find("verification");
      ASSERT_NE(verification, nullptr);
      EXPECT_EQ(verification->get_int("requests").value(), 4);
      EXPECT_TRUE(verification->get_bool("passed").value());
      EXPECT_GT(verification->find("output")->get_double("error").value(), 0.0);
      EXPECT_EQ(json->get_string("device_status").value(), "");
      EXPECT_EQ(verification->find("free_state_error") != nullptr, std::string(state) != "f32");
    }
  }
}

TEST(ReplayCli, EveryProfileVerifies) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", mini_trace());
  for (const char* profile : {"plain", "correlated", "slow", "strong", "mixed"}) {
    const Outcome outcome =
        run({"replay", trace, "--verify", "1", "--profile", profile, "--threads", "1"});
    EXPECT_EQ(outcome.code, 0) << profile << ": " << outcome.err;
  }
}

TEST(ReplayCli, BothRanksOfTwo) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", mini_trace());
  for (const char* rank : {"0", "1"}) {
    const Outcome outcome =
        run({"replay", trace, "--verify", "1", "--tp-size", "2", "--tp-rank", rank});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find(std::string("rank ") + rank + " of 2"), std::string::npos);
  }
  // One norm over all channels: a single rank ends before it and says so.
  const Outcome spans =
      run({"replay", trace, "--model", "minimax-01", "--layers", "1", "--limit", "1", "--tp-size",
           "8", "--tp-rank", "3", "--verify", "1", "--max-running", "1"});
  EXPECT_EQ(spans.code, 0) << spans.err;
  EXPECT_NE(spans.out.find("layers run without norm   1"), std::string::npos) << spans.out;
}

TEST(ReplayCli, EveryPresetRuns) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", request(0, 40, 2, "1") + request(0, 3, 1, "2"));
  for (const char* model : {"tiny", "kimi-linear", "kimi-k3", "glm-5.3-flash", "minimax-01",
                            "ring-mini", "ring-flash"}) {
    const Outcome outcome = run({"replay", trace, "--model", model, "--layers", "1", "--verify",
                                 "1", "--max-running", "2", "--prefill-budget", "64"});
    EXPECT_EQ(outcome.code, 0) << model << ": " << outcome.err;
    EXPECT_NE(outcome.out.find("2 of 2"), std::string::npos) << model;
  }
}

// Requests that share 512 tokens, long enough for the cache, few enough for `ref`.
std::string shared_trace() {
  return request(0, 560, 9, "1, 2") + request(20, 40, 11, "1") + request(20, 1, 3, "2") +
         request(40, 530, 8, "1, 3");
}

testing::Json replay_json(const std::string& trace, std::vector<std::string> args) {
  args.insert(args.begin(), {"replay", trace, "--json", "--threads", "1", "--max-running", "2",
                             "--prefill-budget", "300"});
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  auto json = testing::parse_json(outcome.out);
  EXPECT_TRUE(json.ok()) << outcome.out;
  return json.ok() ? *json : testing::Json::object();
}

TEST(ReplayCli, NoFeatureChangesABitOnRef) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", shared_trace());
  const std::vector<std::vector<std::string>> runs = {
      {},
      {"--replay-ring", "1", "--replay-dtype", "f16"},
      {"--prefix-cache", "on"},
      {"--speculation", "chain", "--acceptance", "0.7"},
      {"--speculation", "tree", "--draft-length", "6", "--acceptance", "1", "--prefix-cache", "on"},
      {"--speculation", "tree", "--acceptance", "0", "--prefix-cache", "on", "--draft-length", "3"},
  };
  std::string first;
  for (std::vector<std::string> args : runs) {
    args.insert(args.end(), {"--kernel", "ref"});
    const testing::Json json = replay_json(trace, args);
    const std::string sum = json.get_string("outputs_sum").value();
    if (first.empty()) first = sum;
    EXPECT_EQ(sum, first) << args[0] << " " << args[1];
  }
  const testing::Json other = replay_json(trace, {"--seed", "1"});
  EXPECT_NE(other.get_string("outputs_sum").value(), first);
}

TEST(ReplayCli, AllFeaturesVerify) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", shared_trace());
  for (const char* state : {"f32", "bf16"}) {
    for (const char* kind : {"chain", "tree"}) {
      for (const char* acceptance : {"0", "0.7", "1"}) {
        if (std::string(state) == "bf16" && std::string(acceptance) != "0.7") continue;
        const testing::Json json =
            replay_json(trace, {"--verify", "1", "--state-dtype", state, "--speculation", kind,
                                "--draft-length", "5", "--acceptance", acceptance, "--prefix-cache",
                                "on", "--replay-ring", acceptance[0] == '1' ? "1" : "3"});
        EXPECT_TRUE(json.find("verification")->get_bool("passed").value());
        EXPECT_EQ(json.find("verification")->get_int("requests").value(), 4);
        EXPECT_EQ(json.get_string("device_status").value(), "");
        const testing::Json* cache = json.find("prefix_cache");
        EXPECT_EQ(cache->get_int("lookups").value(), 4);
        EXPECT_EQ(cache->get_int("hits").value(), 1);
        EXPECT_EQ(cache->get_int("tokens_saved").value(), 512);
        const testing::Json* drafts = json.find("speculation");
        EXPECT_GT(drafts->get_int("drafted").value(), 0);
        const int64_t accepted = drafts->get_int("accepted").value();
        EXPECT_EQ(accepted > 0, std::string(acceptance) != "0");
        if (std::string(kind) == "chain" && acceptance[0] == '1') {
          EXPECT_EQ(accepted, drafts->get_int("drafted").value());
        }
        EXPECT_GT(json.get_int("verify_record_bytes").value(), 0);
        EXPECT_EQ(json.get_int("ring_bytes").value() > 0, acceptance[0] != '1');
      }
    }
  }
}

TEST(ReplayCli, RingsOfBothDtypesVerify) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", mini_trace());
  for (const char* state : {"f32", "f16"}) {
    for (const char* dtype : {"f32", "f16"}) {
      const testing::Json json = replay_json(
          trace,
          {"--verify", "1", "--state-dtype", state, "--replay-ring", "4", "--replay-dtype", dtype});
      EXPECT_TRUE(json.find("verification")->get_bool("passed").value());
      EXPECT_GT(json.get_int("ring_bytes").value(), 0);
    }
  }
}

TEST(ReplayCli, TableOfTheFeatures) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", shared_trace());
  const Outcome outcome = run({"replay", trace, "--limit", "2", "--speculation", "tree",
                               "--prefix-cache", "on", "--replay-ring", "4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"speculation, tree", "accepted per row", "prefix cache", "tokens saved",
                           "(R = 4, f32)", "verify records"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
}

TEST(ReplayCli, TheTracesClock) {
  const Folder folder;
  const std::string trace =
      folder.write("t.jsonl", request(0, 10, 2, "1") + request(600, 10, 2, "1"));
  const Outcome outcome = run({"replay", trace, "--speed", "2", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = testing::parse_json(outcome.out);
  ASSERT_TRUE(json.ok());
  EXPECT_GE(json->get_double("wall_s").value(), 0.3);
  EXPECT_EQ(json->get_string("queue_unit").value(), "s");
}

TEST(ReplayCli, UsageErrors) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", mini_trace());
  const struct {
    std::vector<std::string> args;
    const char* says;
  } cases[] = {
      {{"replay"}, "TRACE"},
      {{"replay", folder.file("absent.jsonl")}, "absent.jsonl: No such file"},
      {{"replay", trace, "--model", "huge"}, "tiny, kimi-linear, kimi-k3"},
      {{"replay", trace, "--state-dtype", "int8"}, "--state-dtype: expected f32, bf16 or f16"},
      {{"replay", trace, "--io-dtype", "f64"}, "--io-dtype: expected f32, bf16 or f16, got f64"},
      {{"replay", trace, "--profile", "odd"}, "--profile: expected plain, correlated"},
      {{"replay", trace, "--kernel", "fast"}, "--kernel: expected one of auto, cpu, cuda, "},
      {{"replay", trace, "--device", "tpu"}, "--device: expected cpu"},
      {{"replay", trace, "--limit", "-1"}, "--limit: expected 0 to"},
      {{"replay", trace, "--layers", "6"}, "--layers: expected at most 5 for tiny, got 6"},
      {{"replay", trace, "--layers", "x"}, "--layers"},
      {{"replay", trace, "--prefill-budget", "0"}, "--prefill-budget: expected 1 to"},
      {{"replay", trace, "--max-running", "-3"}, "--max-running: expected 1 to"},
      {{"replay", trace, "--speculation", "star"}, "--speculation: expected off, chain or tree"},
      {{"replay", trace, "--draft-length", "257"}, "--draft-length: expected 1 to 256, got 257"},
      {{"replay", trace, "--draft-length", "0"}, "--draft-length: expected 1 to 256, got 0"},
      {{"replay", trace, "--acceptance", "1.01"}, "--acceptance: expected a chance from 0 to 1"},
      {{"replay", trace, "--acceptance", "-0.1"}, "--acceptance: expected a chance from 0 to 1"},
      {{"replay", trace, "--acceptance", "nan"}, "--acceptance: expected a chance from 0 to 1"},
      {{"replay", trace, "--prefix-cache", "yes"}, "--prefix-cache: expected on or off, got yes"},
      {{"replay", trace, "--cache-bytes", "9999999"}, "--cache-bytes: expected --prefix-cache on"},
      {{"replay", trace, "--prefix-cache", "on", "--cache-bytes", "0"},
       "--cache-bytes: expected 1"},
      {{"replay", trace, "--prefix-cache", "on", "--cache-bytes", "271359"},
       "one snapshot of tiny takes 271360 bytes"},
      {{"replay", trace, "--replay-ring", "65"}, "--replay-ring: expected 1 to 64, got 65"},
      {{"replay", trace, "--replay-ring", "0"}, "--replay-ring: expected 1 to 64, got 0"},
      {{"replay", trace, "--replay-dtype", "bf16"},
       "--replay-dtype: expected f32 or f16, got bf16"},
      {{"replay", trace, "--verify", "1.5"}, "--verify: expected a fraction from 0 to 1, got 1.5"},
      {{"replay", trace, "--verify", "nan"}, "--verify: expected"},
      {{"replay", trace, "--speed", "-1"}, "--speed: expected"},
      {{"replay", trace, "--threads", "-2"}, "--threads: expected"},
      {{"replay", trace, "--tp-size", "3"}, "--tp-size 3: "},
      {{"replay", trace, "--tp-size", "2", "--tp-rank", "2"}, "--tp-rank: expected 0 to 1, got 2"},
      {{"replay", trace, "--pool-bytes", "1000"}, "one slot of tiny takes 271360 bytes"},
      {{"replay", trace, "--pool-bytes", "300000", "--max-running", "2"},
       "2 slots need 542720 bytes"},
      {{"replay", trace, "--model", "kimi-k3", "--max-running", "1000000"}, "bytes of memory"},
      {{"replay", trace, "--plot", folder.file("absent/x.svg")}, "absent/x.svg: No such file"},
      {{"replay", trace, "--frobnicate"}, "--frobnicate"},
      {{"explain", "--op", "softmax"}, "--op: expected one of all, "},
      {{"explain", "--rows", "0"}, "--rows: expected 1 to"},
      {{}, "subcommand"},
  };
  for (const auto& c : cases) expect_error(run(c.args), 2, c.says);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"t.jsonl"}) << "errors leave no files";
}

TEST(ReplayCli, BrokenLineIsNamed) {
  const Folder folder;
  const std::string trace = folder.write(
      "t.jsonl", mini_trace() +
                     "{\"timestamp\": 50, \"input_length\": 600, \"output_length\": 1, "
                     "\"hash_ids\": [1]}\n");
  expect_error(run({"replay", trace, "--plot", folder.file("p.svg")}), 2,
               "t.jsonl:5: hash_ids: expected 2 ids for 600 input tokens, got 1");
  EXPECT_EQ(folder.files(), std::vector<std::string>{"t.jsonl"});
}

TEST(ReplayCli, PlotIsWrittenWhole) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", mini_trace());
  const std::string plot = folder.file("p.svg");
  const Outcome outcome = run({"replay", trace, "--plot", plot});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string svg = read_file(plot);
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_EQ(folder.files().size(), 2u);
}

TEST(ReplayCli, InterruptEndsInTimeAndWritesNothing) {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += request(0, 5000, 500, "1, 2, 3, 4, 5, 6, 7, 8, 9, 10");
  const std::string trace = folder.write("t.jsonl", lines);
  // A model with small layers, one whose single calls take long, and one that waits.
  const std::vector<std::vector<std::string>> runs = {
      {"replay", trace, "--verify", "1"},
      {"replay", trace, "--model", "kimi-linear", "--verify", "1", "--max-running", "2"},
  };
  for (const std::vector<std::string>& base : runs) {
    for (const int signal : {SIGINT, SIGTERM}) {
      std::vector<std::string> args = base;
      args.insert(args.end(), {"--plot", folder.file("p.svg")});
      How how;
      how.signal = signal;
      how.seconds_later = 1.0;
      const Outcome outcome = run(args, how);
      EXPECT_EQ(outcome.code, 130) << outcome.err;
      EXPECT_LT(outcome.seconds, 5.0);
      EXPECT_EQ(outcome.out, "");
      EXPECT_NE(outcome.err.find("interrupted after 0 of 50 requests; nothing was written"),
                std::string::npos)
          << outcome.err;
      EXPECT_EQ(folder.files(), std::vector<std::string>{"t.jsonl"});
    }
  }
}

TEST(ReplayCli, InterruptWhileWaiting) {
  const Folder folder;
  const std::string trace =
      folder.write("t.jsonl", request(0, 10, 1, "1") + request(3600000, 10, 1, "1"));
  How how;
  how.signal = SIGINT;
  how.until = "1 of 2 requests, waiting";
  const Outcome outcome = run({"replay", trace, "--speed", "1"}, how);
  EXPECT_EQ(outcome.code, 130);
  EXPECT_LT(outcome.seconds, 5.0);
  EXPECT_NE(outcome.err.find("interrupted after 1 of 2 requests"), std::string::npos)
      << outcome.err;
}

TEST(ReplayCli, APlotIntoADeviceIsWrittenToItAndItsErrorsAreSaid) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", mini_trace());
  for (const char* device : {"/dev/full", "/dev/null"}) {
    const std::string link = folder.file("link.svg");
    ASSERT_EQ(symlink(device, link.c_str()), 0);
    const Outcome outcome = run({"replay", trace, "--plot", link});
    if (std::string(device) == "/dev/full") {
      expect_error(outcome, 2, "cannot write " + link + ": No space left on device");
    } else {
      EXPECT_EQ(outcome.code, 0) << outcome.err;
    }
    struct stat info {};
    ASSERT_EQ(lstat(link.c_str(), &info), 0);
    EXPECT_TRUE(S_ISLNK(info.st_mode)) << "a file in the place of " << device;
    std::remove(link.c_str());
  }
}

TEST(ReplayCli, AFullStandardOutputIsAnErrorOfEveryVerb) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", mini_trace());
  const std::string golden =
      std::string(LINESTATE_SOURCE_DIR) + "/tests/golden/lightning_slopes.safetensors";
  How how;
  how.in_child = [] { dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO); };
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"replay", trace},
                                             {"replay", trace, "--json"},
                                             {"check", golden},
                                             {"check", golden, "--json"},
                                             {"explain", "--model", "tiny"},
                                             {"info"},
                                             {"--version"},
                                             {"replay", "--help"}}) {
    const Outcome outcome = run(args, how);
    EXPECT_NE(outcome.code, 0) << args[0];
    EXPECT_NE(outcome.err.find("linestate: cannot write to standard output"), std::string::npos)
        << args[0] << ": " << outcome.err;
  }
}

TEST(ReplayCli, SameSeedSameErrorsWhateverTheThreads) {
  const Folder folder;
  const std::string trace = folder.write("t.jsonl", mini_trace());
  std::string first;
  for (const char* threads : {"1", "2", "3"}) {
    const Outcome outcome = run({"replay", trace, "--verify", "1", "--json", "--threads", threads});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto json = testing::parse_json(outcome.out);
    ASSERT_TRUE(json.ok());
    const std::string verification = testing::dump_json(*json->find("verification"));
    if (first.empty()) first = verification;
    EXPECT_EQ(verification, first);
  }
}

TEST(ReplayCli, ExplainNamesAKernelPerOperator) {
  const Outcome outcome = run({"explain", "--model", "tiny"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* op : {"causal_conv1d_prefill: cpu", "causal_conv1d_update: cpu",
                         "kda_prefill: cpu", "kda_decode: cpu", "lightning_prefill: cpu",
                         "lightning_decode: cpu", "gated_rms_norm: cpu", "group_rms_norm: cpu"}) {
    EXPECT_NE(outcome.out.find(op), std::string::npos) << op << "\n" << outcome.out;
  }
  const Outcome one = run({"explain", "--op", "kda_decode", "--kernel", "ref"});
  EXPECT_NE(one.out.find("kda_decode: ref"), std::string::npos) << one.out;
  EXPECT_EQ(one.out.find("kda_prefill"), std::string::npos);
}

TEST(ReplayCli, InfoListsBuildKernelsAndModels) {
  const Outcome outcome = run({"info"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"linestate ", "build: ", "kda_prefill", "kimi-k3", "271 360"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace linestate
