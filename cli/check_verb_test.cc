#include "cli/check_verb.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "testing/json.h"

namespace linestate::cli {
namespace {

std::string golden(const std::string& name) {
  return LINESTATE_SOURCE_DIR "/tests/golden/" + name + ".safetensors";
}

struct Output {
  int code = 0;
  std::string out;
  std::string err;
  bool says(const std::string& text) const { return out.find(text) != std::string::npos; }
};

Output check(const CheckOptions& options) {
  std::ostringstream out;
  std::ostringstream err;
  Output output;
  output.code = run_check(options, out, err);
  output.out = out.str();
  output.err = err.str();
  return output;
}

/// A copy of a golden file with one byte of one tensor's data changed.
std::string damaged_copy(const std::string& name, size_t from_end) {
  std::ifstream in(golden(name), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  bytes[bytes.size() - from_end] ^= 0x40;
  const std::string path = ::testing::TempDir() + "check_" + name + ".safetensors";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(Check, PrintsATable) {
  CheckOptions options;
  options.files = {golden("conv1d_update_bf16w"), golden("lightning_slopes")};
  options.kernel = "ref";
  const Output output = check(options);
  EXPECT_EQ(output.code, 0) << output.out << output.err;
  EXPECT_EQ(output.out.find("file "), 0u);
  EXPECT_TRUE(output.says("out_silu_bias window")) << output.out;
  EXPECT_TRUE(output.says("144 slope tensors")) << output.out;
  EXPECT_TRUE(output.says("2.69e-03")) << output.out;  // SGLang's own error of out_silu_bias
  EXPECT_TRUE(output.says("2 files: 2 passed, 0 failed, 0 unreadable, 0 not run\n"));
  EXPECT_TRUE(output.err.empty()) << output.err;
}

TEST(Check, TrapFilesShowSglangsOwnOutput) {
  CheckOptions options;
  options.files = {golden("kda_prefill_trap_mixedbase_d64")};
  const Output output = check(options);
  EXPECT_EQ(output.code, 0) << output.out;
  EXPECT_TRUE(output.says("SGLang's o_as_shipped_fused")) << output.out;
  EXPECT_TRUE(output.says("1.21e-01")) << output.out;
  EXPECT_TRUE(output.says("info")) << output.out;
}

TEST(Check, PastTheLimitsIsOne) {
  const std::string path = damaged_copy("conv1d_update_bf16w", 1);  // the last byte is x's
  CheckOptions options;
  options.files = {path, golden("conv1d_update_f32w"), golden("metadata"), "/nonexistent"};
  const Output output = check(options);
  EXPECT_EQ(output.code, kCheckPastLimits);
  EXPECT_TRUE(output.says("FAIL")) << output.out;
  EXPECT_TRUE(output.says("4 files: 1 passed, 1 failed, 1 unreadable, 0 not run, 1 without"))
      << output.out;
  std::remove(path.c_str());
}

TEST(Check, UnreadableIsTwo) {
  CheckOptions options;
  options.files = {"/nonexistent/a.safetensors", golden("track_decode"),
                   LINESTATE_SOURCE_DIR "/CMakeLists.txt"};
  const Output output = check(options);
  EXPECT_EQ(output.code, kCheckUnreadable);
  EXPECT_EQ(output.err.find("linestate: /nonexistent/a.safetensors: no such file\n"), 0u)
      << output.err;
  EXPECT_NE(output.err.find("CMakeLists.txt: header of"), std::string::npos) << output.err;
}

TEST(Check, UnknownOperatorIsThree) {
  CheckOptions options;
  // An operator of a later version: the file's own name for it, one letter changed.
  std::ifstream in(golden("kda_decode_edge_d32"), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t at = bytes.find("\"op\": \"kda_decode\"");
  const size_t compact = bytes.find("\"op\":\"kda_decode\"");
  ASSERT_TRUE(at != std::string::npos || compact != std::string::npos);
  bytes[bytes.find("kda_decode", at != std::string::npos ? at : compact)] = 'x';
  const std::string path = ::testing::TempDir() + "check_unknown_op.safetensors";
  std::ofstream(path, std::ios::binary) << bytes;
  options.files = {golden("conv1d_update_f32w"), path};
  const Output output = check(options);
  EXPECT_EQ(output.code, kCheckNotRun);
  EXPECT_TRUE(output.says("not run: xda_decode, this build has no such operator")) << output.out;
  std::remove(path.c_str());
}

TEST(Check, HostIntegersAreNoFailure) {
  CheckOptions options;
  options.files = {golden("conv1d_update_f32w"), golden("metadata")};
  const Output output = check(options);
  EXPECT_EQ(output.code, 0);
  EXPECT_TRUE(output.says("not run: metadata, host integers")) << output.out;
}

TEST(Check, BadOptionsAreTwo) {
  CheckOptions options;
  EXPECT_EQ(check(options).code, kCheckUnreadable);
  options.files = {golden("conv1d_update_f32w")};
  options.device = "tpu";
  EXPECT_EQ(check(options).err,
            "linestate: --device: expected cpu, cuda, cuda:I or auto, got tpu\n");
  options.device = "cpu";
  options.threads = -1;
  EXPECT_EQ(check(options).code, kCheckUnreadable);
  options.threads = 0;
  options.kernel = "fpga";
  const Output output = check(options);
  EXPECT_EQ(output.code, kCheckUnreadable);
  EXPECT_NE(output.err.find("fpga"), std::string::npos) << output.err;
}

TEST(Check, JsonHoldsTheSame) {
  CheckOptions options;
  options.files = {golden("kda_decode_f32state_d128"), golden("metadata"), "/nonexistent"};
  options.json = true;
  const Output output = check(options);
  EXPECT_EQ(output.code, kCheckUnreadable);
  const Result<testing::Json> json = testing::parse_json(output.out);
  ASSERT_TRUE(json.ok()) << json.status().to_string() << output.out;
  EXPECT_EQ(*json->get_int("passed"), 1);
  EXPECT_EQ(*json->get_int("failed"), 0);
  EXPECT_EQ(*json->get_int("unreadable"), 1);
  EXPECT_EQ(*json->get_int("not_run"), 0);
  EXPECT_EQ(*json->get_int("no_operator"), 1);
  const testing::Json::Array& files = **json->get_array("files");
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(*files[0].get_string("outcome"), "passed");
  EXPECT_EQ(*files[0].get_string("op"), "kda_decode");
  EXPECT_EQ(*files[0].get_string("kernel"), "cpu");
  const testing::Json& out = (*files[0].get_array("tensors"))->front();
  EXPECT_EQ(*out.get_string("tensor"), "out");
  EXPECT_EQ(*out.get_string("verdict"), "pass");
  EXPECT_GT(*out.get_double("error"), 0.0);
  EXPECT_NEAR(*out.get_double("sglang_error"), 1.69e-3, 1e-5);
  EXPECT_EQ(*files[1].get_string("outcome"), "no_operator");
  EXPECT_EQ(*files[2].get_string("message"), "/nonexistent: no such file");
}

}  // namespace
}  // namespace linestate::cli
