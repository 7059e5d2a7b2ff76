// Every golden file whose operator exists, on every CPU kernel: within SGLang's own error of the
// float64 recurrence, windows and slopes bit for bit.
#include "testing/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "testing/host_tensor.h"

namespace linestate::testing {
namespace {

const std::string kFolder = LINESTATE_SOURCE_DIR "/tests/golden/";

struct GoldenFile {
  const char* name;
  int judged;  // lines that pass or fail, so that none goes missing unseen
};

// clang-format off
constexpr GoldenFile kServed[] = {
    {"conv1d_prefill_bf16w_dim320", 12},
    {"conv1d_prefill_f32w", 16},
    {"conv1d_spec_chain", 5},
    {"conv1d_spec_chain_t2", 4},
    {"conv1d_spec_tree", 6},
    {"conv1d_update_bf16w", 12},
    {"conv1d_update_f32w", 12},
    {"kda_decode_bf16state_gva_d64", 6},
    {"kda_decode_edge_d32", 4},
    {"kda_decode_f32state_d128", 4},
    {"kda_prefill_edge_d32", 3},
    {"kda_prefill_safegate_d128", 3},
    {"kda_prefill_safegate_d64", 3},
    {"kda_prefill_softplus_d128", 3},
    {"kda_prefill_stronggate_d64", 3},
    {"kda_prefill_trap_mixedbase_d64", 2},
    {"kda_replayssm_bf16ring_d64", 6},
    {"kda_replayssm_d128", 6},
    {"kda_verify_chain_d64", 5},
    {"kda_verify_tree_d64", 5},
    {"lightning_decode_f32_d128", 4},
    {"lightning_minimax_decode_bf16_d128", 4},
    {"lightning_minimax_decode_f32_d64", 4},
    {"lightning_minimax_prefill_f32_d128", 3},
    {"lightning_minimax_prefill_f32_d64", 3},
    {"lightning_mtp_bf16_d64", 5},
    {"lightning_mtp_f32_d128", 4},
    {"lightning_prefill_bf16_d64", 3},
    {"lightning_prefill_even_bf16_d64", 3},
    {"lightning_prefill_f32_d128", 3},
    {"lightning_prefill_steep_f32_d64", 3},
    {"lightning_slopes", 1},
    {"spec_commit_bf16", 4},
    {"spec_commit_f32", 4},
    {"track_decode", 4},
};
// clang-format on

Safetensors read_golden(const std::string& name) {
  Result<Safetensors> file = read_safetensors(kFolder + name + ".safetensors");
  EXPECT_TRUE(file.ok()) << file.status().to_string();
  return file.ok() ? std::move(*file) : Safetensors();
}

class Golden : public ::testing::TestWithParam<std::tuple<GoldenFile, const char*>> {};

TEST_P(Golden, MatchesTheRecurrence) {
  const auto& [golden, kernel] = GetParam();
  const Safetensors file = read_golden(golden.name);
  GoldenOptions options;
  options.kernel = kernel;
  const Result<GoldenReport> report = run_golden(file, golden.name, options);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->kernel, report->op == "lightning_slopes" ? "host" : kernel);
  int judged = 0;
  for (const GoldenLine& line : report->lines) {
    EXPECT_NE(line.verdict, GoldenVerdict::kFail)
        << line.tensor << ": rel " << line.rel << ", limit " << line.limit << " " << line.note;
    if (line.verdict != GoldenVerdict::kInfo) ++judged;
  }
  EXPECT_EQ(judged, golden.judged);
  EXPECT_TRUE(report->passed());
}

std::string param_name(const ::testing::TestParamInfo<Golden::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param);
}

INSTANTIATE_TEST_SUITE_P(Files, Golden,
                         ::testing::Combine(::testing::ValuesIn(kServed),
                                            ::testing::Values("ref", "cpu")),
                         param_name);

TEST(GoldenFiles, EveryFileIsServedOrRefusedByName) {
  std::vector<std::string> refused;
  for (const auto& item : std::filesystem::directory_iterator(kFolder)) {
    if (item.path().extension() != ".safetensors") continue;
    const std::string name = item.path().stem().string();
    const bool served = std::any_of(std::begin(kServed), std::end(kServed),
                                    [&](const GoldenFile& file) { return file.name == name; });
    if (served) continue;
    const Safetensors file = read_golden(name);
    const Result<GoldenReport> report = run_golden(file, name, {});
    ASSERT_FALSE(report.ok()) << name;
    EXPECT_EQ(report.status().code(), StatusCode::kFailedPrecondition)
        << report.status().to_string();
    EXPECT_EQ(report.status().message().find(*file.meta("op")), 0u) << report.status().message();
    refused.push_back(name);
  }
  EXPECT_EQ(refused.size() + std::size(kServed), 36u);
}

TEST(GoldenFiles, EverySlopeTensorIsCompared) {
  const Result<GoldenReport> report = run_golden(read_golden("lightning_slopes"), "slopes", {});
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->lines.front().tensor, "144 slope tensors");
}

TEST(GoldenFiles, ThreadsDoNotChangeTheErrors) {
  for (const char* name : {"kda_prefill_safegate_d64", "lightning_prefill_bf16_d64",
                           "kda_decode_bf16state_gva_d64", "conv1d_prefill_f32w"}) {
    const Safetensors file = read_golden(name);
    std::vector<std::vector<double>> errors;
    for (int32_t threads : {1, 2, 3}) {
      GoldenOptions options;
      options.threads = threads;
      const Result<GoldenReport> report = run_golden(file, name, options);
      ASSERT_TRUE(report.ok()) << report.status().to_string();
      errors.emplace_back();
      for (const GoldenLine& line : report->lines) errors.back().push_back(line.rel);
    }
    EXPECT_EQ(errors[0], errors[1]) << name;
    EXPECT_EQ(errors[0], errors[2]) << name;
  }
}

/// The error of SGLang that a report shows is the one in the file; the limit is derived from it.
TEST(GoldenFiles, LimitsFollowTheTolerances) {
  const Safetensors file = read_golden("kda_prefill_safegate_d64");
  const Result<GoldenReport> report = run_golden(file, "safegate", {});
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  std::map<std::string, GoldenLine> lines;
  for (const GoldenLine& line : report->lines) lines[line.tensor] = line;
  EXPECT_NEAR(*lines["o"].sglang, 4.14e-3, 0.01e-3);
  EXPECT_EQ(lines["o"].limit, 3.3e-3);  // ceiling below 1.1 x 4.14e-3
  EXPECT_NEAR(*lines["state_after"].sglang, 2.62e-3, 0.01e-3);
  EXPECT_EQ(lines["state_after"].limit, 1.8e-3);  // ceiling below 1.1 x 2.62e-3
}

TEST(GoldenFiles, TrapsAreToldApartFromTheRecurrence) {
  const Result<GoldenReport> kda =
      run_golden(read_golden("kda_prefill_trap_mixedbase_d64"), "trap", {});
  ASSERT_TRUE(kda.ok()) << kda.status().to_string();
  const Result<GoldenReport> minimax =
      run_golden(read_golden("lightning_minimax_prefill_f32_d64"), "trap", {});
  ASSERT_TRUE(minimax.ok()) << minimax.status().to_string();
  std::map<std::string, double> measured;
  for (const Result<GoldenReport>* report : {&kda, &minimax}) {
    for (const GoldenLine& line : (*report)->lines) {
      if (line.verdict == GoldenVerdict::kInfo) {
        measured[(*report)->op + " " + line.tensor] = line.rel;
      }
    }
  }
  EXPECT_NEAR(measured["kda_prefill SGLang's o_as_shipped_fused"], 0.121, 0.001);
  EXPECT_NEAR(measured["kda_prefill SGLang's o_as_shipped_unfused"], 0.121, 0.001);
  EXPECT_NEAR(measured["kda_prefill SGLang's o"], 4.42e-3, 0.01e-3);
  EXPECT_NEAR(measured["lightning_minimax_prefill SGLang's o"], 9.29e-3, 0.01e-3);
}

/// A runner that compared nothing, or the wrong rows, would pass with any reference.
TEST(GoldenFiles, AWrongReferenceFails) {
  for (const auto& [name, tensor] :
       std::map<std::string, std::string>{{"conv1d_prefill_f32w", "out_silu_bias_ref"},
                                          {"conv1d_update_f32w", "conv_pool_after"},
                                          {"kda_prefill_safegate_d128", "state_ref"},
                                          {"kda_decode_f32state_d128", "out_ref"},
                                          {"kda_decode_bf16state_gva_d64", "state_ref_rounded"},
                                          {"lightning_prefill_f32_d128", "o_ref"},
                                          {"lightning_decode_f32_d128", "state_ref"},
                                          {"lightning_minimax_prefill_f32_d64", "kv_ref"},
                                          {"conv1d_spec_tree", "intermediate_windows"},
                                          {"conv1d_spec_chain", "out_ref"},
                                          {"kda_verify_tree_d64", "intermediate_states_ref"},
                                          {"kda_replayssm_d128", "flush_state_ref"},
                                          {"lightning_mtp_f32_d128", "intermediate_states_ref"},
                                          {"spec_commit_f32", "conv_after_track"},
                                          {"track_decode", "ssm_after_freed"},
                                          {"lightning_slopes", "n12_L24_tp4"}}) {
    Safetensors file = read_golden(name);
    HostTensor& ref = file.tensors.find(tensor)->second;
    for (int64_t i = 0; i < ref.num_elements(); ++i) ref.set(i, 1.25 * ref.at(i));
    const Result<GoldenReport> report = run_golden(file, name, {});
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_FALSE(report->passed()) << name;
  }
}

TEST(GoldenFiles, DamagedContentsAreErrors) {
  Safetensors file = read_golden("lightning_prefill_bf16_d64");
  file.tensors.erase("o_ref");
  Result<GoldenReport> report = run_golden(file, "x", {});
  EXPECT_EQ(report.status().to_string(), "not_found: x: tensor \"o_ref\": not in the file");

  file = read_golden("lightning_prefill_bf16_d64");
  file.tensors.find("k")->second = HostTensor(DType::kBF16, {102, 2, 32});
  report = run_golden(file, "x", {});
  EXPECT_EQ(report.status().to_string(),
            "data_loss: x: tensor \"k\": expected [102, 2, 64], got [102, 2, 32]");

  file = read_golden("lightning_prefill_bf16_d64");
  file.tensors.find("query_start_loc")->second = i32_tensor({0, 5, 3, 102});
  EXPECT_EQ(run_golden(file, "x", {}).status().code(), StatusCode::kDataLoss);

  file = read_golden("lightning_prefill_bf16_d64");
  file.metadata["params"] = "{\"H\": 2";
  EXPECT_EQ(run_golden(file, "x", {}).status().code(), StatusCode::kDataLoss);

  file.metadata.erase("op");
  EXPECT_EQ(run_golden(file, "x", {}).status().code(), StatusCode::kDataLoss);
}

TEST(GoldenFiles, UnknownKernelAndDeviceAreErrors) {
  const Safetensors file = read_golden("conv1d_update_bf16w");
  GoldenOptions options;
  options.kernel = "fpga";
  EXPECT_EQ(run_golden(file, "x", options).status().code(), StatusCode::kNotFound);
  options = {};
  options.device = Device{DeviceType::kExternal, 0};  // a GPU may be there
  EXPECT_EQ(run_golden(file, "x", options).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace linestate::testing
