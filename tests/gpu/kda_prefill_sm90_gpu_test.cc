// The row "cuda_sm90" of kda_prefill: golden files, the row contract, dtypes, keys that repeat,
// unusual magnitudes, snapshots, and what it refuses. Calls run through MirroredCall: eagerly and
// from a graph, same bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "linestate/kernel_registry.h"
#include "ops/kda/prefill/kda_prefill_kernels.h"
#include "testing/compare.h"
#include "testing/golden.h"
#include "testing/kda_problem.h"
#include "testing/safetensors.h"
#include "tests/gpu/mirrored_rows_fixture.h"

namespace linestate::testing {
namespace {

constexpr const char* kMirror = "sm90_on_copies";

Status run_sm90(const KdaParams& params, const ExecContext& context, void*) {
  return MirroredCall<KdaParams>(kda_prefill_table(), params, context, "cuda_sm90").run();
}

class KdaPrefillSm90 : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ExternalKernel<KdaParams> kernel;
    kernel.name = kMirror;
    kernel.device = DeviceType::kCpu;
    kernel.summary = "the cuda_sm90 row on copies of host tensors";
    kernel.run = run_sm90;
    const Status status = register_kernel("kda_prefill", kernel);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
};

KdaShape served_shape(DType io) {
  KdaShape shape;
  shape.H = 2;
  shape.HV = 4;
  shape.K = shape.V = 128;
  shape.io = shape.gate_dtype = shape.out = io;
  shape.slots = 10;
  return shape;
}

std::vector<KdaRow> mixed_rows() {
  return {{2, 0, 300}, {0, 10, 77}, {5, 64, 64},      {1, 0, 0},   {3, 128, 0},
          {-1, 0, 40}, {4, 7, 1},   {6, 0, 200, 130}, {7, 63, 130}};
}

/// Against `ref` with f32 pool and outputs. Outputs: 1.05 times the rounding to bf16, for f16
/// outputs too, which OPS gives no floor of their own. State: the ceiling of the general template.
std::string judge(const KdaShape& shape, const std::vector<KdaRow>& rows) {
  KdaProblem problem = make_kda_problem(shape, total_tokens(rows) + 3, 17);
  problem.set_rows(rows);
  KdaProblem exact = problem.clone();
  exact.out = cast_of(problem.out, DType::kF32);
  std::string error = run_kda(KdaPhase::kPrefill, exact.params(), "ref");
  if (error.empty()) error = run_kda(KdaPhase::kPrefill, problem.params(), kMirror);
  if (!error.empty()) return error;
  const HostTensor out = cast_of(problem.out, DType::kF32);
  const double o = compare(out.view(), exact.out.view()).rel;
  const double state = compare(problem.state.view(), exact.state.view()).rel;
  const HostTensor rounded = cast_of(cast_of(exact.out, DType::kBF16), DType::kF32);
  const double floor = 1.05 * compare(rounded.view(), exact.out.view()).rel;
  if (o <= floor && state <= 1.2e-3) return "";
  return "out " + std::to_string(o) + ", state " + std::to_string(state);
}

TEST_F(KdaPrefillSm90, GoldenFiles) {
  for (const char* name : {"kda_prefill_safegate_d128", "kda_prefill_softplus_d128"}) {
    Result<Safetensors> file = read_safetensors(LINESTATE_SOURCE_DIR "/tests/golden/" +
                                                std::string(name) + ".safetensors");
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    GoldenOptions options;
    options.kernel = kMirror;
    const Result<GoldenReport> report = run_golden(*file, name, options);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_EQ(report->kernel, kMirror);
    for (const GoldenLine& line : report->lines) {
      EXPECT_NE(line.verdict, GoldenVerdict::kFail)
          << name << " " << line.tensor << ": rel " << line.rel << ", limit " << line.limit;
      ::testing::Test::RecordProperty(std::string(name) + "_" + line.tensor,
                                      std::to_string(line.rel));
    }
    EXPECT_TRUE(report->passed()) << name;
  }
}

TEST_F(KdaPrefillSm90, RowsGatesAndDtypes) {
  for (const DType io : {DType::kBF16, DType::kF16}) {
    for (const KdaGate form : {KdaGate::kSoftplus, KdaGate::kBounded, KdaGate::kActivated}) {
      for (const DType gate : {io, DType::kF32}) {
        KdaShape shape = served_shape(io);
        shape.gate_form = form;
        shape.gate_dtype = gate;
        shape.lower_bound = form == KdaGate::kBounded ? -5.0f : 0.0f;
        EXPECT_EQ(judge(shape, mixed_rows()), "")
            << dtype_name(io) << " gate " << static_cast<int>(form) << " " << dtype_name(gate);
      }
    }
  }
}

TEST_F(KdaPrefillSm90, BatchMatesDoNotChangeBits) {
  KdaProblem batch = make_kda_problem(served_shape(DType::kBF16), total_tokens(mixed_rows()), 3);
  KdaProblem alone = batch.clone();
  batch.set_rows(mixed_rows());
  std::vector<KdaRow> rows = mixed_rows();
  for (size_t n = 1; n < rows.size(); ++n) rows[n].slot = -1;
  alone.set_rows(rows);
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, batch.params(), kMirror), "");
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, alone.params(), kMirror), "");
  EXPECT_EQ(bit_difference(copy_of(batch.out.view().slice(0, 0, 300)),
                           copy_of(alone.out.view().slice(0, 0, 300))),
            "");
}

TEST_F(KdaPrefillSm90, SplitOnTheGridIsTheWhole) {
  KdaProblem whole = make_kda_problem(served_shape(DType::kBF16), 300, 5);
  KdaProblem parts = whole.clone();
  whole.set_rows({{2, 10, 300}});
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, whole.params(), kMirror), "");
  // The first call takes tokens up to position 128; the second sees them as padding.
  parts.set_rows({{2, 10, 118}, {-1, 0, 182}});
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, parts.params(), kMirror), "");
  const HostTensor first = copy_of(parts.out.view().slice(0, 0, 118));
  parts.set_rows({{-1, 0, 118}, {2, 128, 182}});
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, parts.params(), kMirror), "");
  EXPECT_EQ(bit_difference(first, copy_of(whole.out.view().slice(0, 0, 118))), "");
  EXPECT_EQ(bit_difference(copy_of(parts.out.view().slice(0, 118, 300)),
                           copy_of(whole.out.view().slice(0, 118, 300))),
            "");
  EXPECT_EQ(bit_difference(parts.state, whole.state), "");
}

/// A problem whose keys are a common vector and noise, with beta near 1 and slow gates.
KdaProblem repeated_keys(KdaGate form, double noise, int64_t tokens) {
  KdaShape shape = served_shape(DType::kBF16);
  shape.gate_form = form;
  shape.lower_bound = form == KdaGate::kBounded ? -5.0f : 0.0f;
  KdaProblem problem = make_kda_problem(shape, tokens, 29);
  const int64_t width = shape.H * shape.K;
  for (int64_t i = 0; i < tokens * width; ++i) {
    const double common = problem.k.at(i % width);
    if (i >= width) problem.k.set(i, common + noise * problem.k.at(i));
  }
  for (int64_t i = 0; i < problem.gate.num_elements(); ++i) {
    problem.gate.set(i, -9.0 + 0.1 * problem.gate.at(i));
  }
  for (int64_t i = 0; i < problem.beta.num_elements(); ++i) problem.beta.set(i, 12.0);
  for (int64_t i = 0; i < problem.A_log.num_elements(); ++i) problem.A_log.set(i, 0.0);
  for (int64_t i = 0; i < problem.dt_bias.num_elements(); ++i) problem.dt_bias.set(i, 0.0);
  return problem;
}

// The ceilings of a bounded gate and of any gate. An exact kernel's distance from f64 is 1.66e-3 in
// the outputs: bf16.
TEST_F(KdaPrefillSm90, KeysThatRepeat) {
  for (const KdaGate form : {KdaGate::kBounded, KdaGate::kSoftplus}) {
    for (const double noise : {0.0, 0.01, 0.1, 0.5}) {
      KdaProblem problem = repeated_keys(form, noise, 1200);
      problem.set_rows({{3, 0, 1200}});
      KdaProblem exact = problem.clone();
      exact.out = cast_of(problem.out, DType::kF32);
      ASSERT_EQ(run_kda(KdaPhase::kPrefill, exact.params(), "ref"), "");
      ASSERT_EQ(run_kda(KdaPhase::kPrefill, problem.params(), kMirror), "");
      const HostTensor out = cast_of(problem.out, DType::kF32);
      const double o = compare(out.view(), exact.out.view()).rel;
      const double state =
          compare(problem.state.view().select(0, 3), exact.state.view().select(0, 3)).rel;
      const bool bounded = form == KdaGate::kBounded;
      EXPECT_LE(o, bounded ? 3.3e-3 : 2.1e-3) << noise;
      EXPECT_LE(state, bounded ? 1.8e-3 : 1.2e-3) << noise;
      ::testing::Test::RecordProperty("noise_" + std::to_string(noise),
                                      std::to_string(o) + " " + std::to_string(state));
    }
  }
}

// Operands are f16: values and states far from 1 are scaled, and neither vanish nor become
// infinite.
TEST_F(KdaPrefillSm90, UnusualMagnitudes) {
  for (const double size : {1e-6, 1e-3, 1e4, 1e8}) {
    KdaProblem problem = make_kda_problem(served_shape(DType::kBF16), 300, 31);
    for (int64_t i = 0; i < problem.v.num_elements(); ++i) {
      problem.v.set(i, size * problem.v.at(i));
    }
    for (int64_t i = 0; i < problem.state.num_elements(); ++i) {
      problem.state.set(i, size * problem.state.at(i));
    }
    problem.set_rows({{2, 10, 200}, {5, 0, 100}});
    EXPECT_EQ(check_kda_against_ref(KdaPhase::kPrefill, problem, kMirror, 1e-6, 1.2e-3), "")
        << size;
  }
}

TEST_F(KdaPrefillSm90, SnapshotsAnywhere) {
  KdaProblem plain = make_kda_problem(served_shape(DType::kBF16), 430, 37);
  plain.set_rows({{2, 10, 300}, {0, 0, 130}});
  KdaProblem problem = plain.clone();
  KdaProblem exact = plain.clone();
  exact.out = cast_of(plain.out, DType::kF32);
  const HostTensor row = i32_tensor({0, 0, 0, 0, 1, 1, 1});
  const HostTensor position = i64_tensor({12, 64, 100, 310, 5, 128, 129});
  const HostTensor slot = i32_tensor({9, 8, 7, 6, 5, 4, 3});
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, plain.params(), kMirror), "");
  KdaParams params = problem.params();
  params.snapshots = {row, position, slot};
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, params, kMirror), "");
  params = exact.params();
  params.snapshots = {row, position, slot};
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, params, "ref"), "");
  EXPECT_EQ(bit_difference(problem.out, plain.out), "");
  for (int64_t i = 0; i < 10; ++i) {
    EXPECT_LE(compare(problem.state.view().select(0, i), exact.state.view().select(0, i)).rel,
              1.2e-3)
        << "slot " << i;
  }
  for (const int64_t live : {int64_t{0}, int64_t{2}}) {
    EXPECT_EQ(bit_difference(copy_of(problem.state.view().select(0, live)),
                             copy_of(plain.state.view().select(0, live))),
              "");
  }
}

// Against `ref` with an f32 pool. The rounding of bf16 covers the kernel's own error; beside that
// of f16 both count, under the ceiling of the general template.
TEST_F(KdaPrefillSm90, NarrowPools) {
  KdaShape shape = served_shape(DType::kBF16);
  shape.state = DType::kBF16;
  KdaProblem problem = make_kda_problem(shape, total_tokens(mixed_rows()) + 3, 41);
  problem.set_rows(mixed_rows());
  EXPECT_EQ(check_kda_against_ref(KdaPhase::kPrefill, problem, kMirror, 1e-6, 1.2e-3), "");

  shape.state = DType::kF16;
  problem = make_kda_problem(shape, total_tokens(mixed_rows()) + 3, 41);
  problem.set_rows(mixed_rows());
  KdaProblem exact = problem.clone();
  exact.state = cast_of(problem.state, DType::kF32);
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, exact.params(), "ref"), "");
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, problem.params(), kMirror), "");
  const HostTensor state = cast_of(problem.state, DType::kF32);
  EXPECT_LE(compare(state.view(), exact.state.view()).rel, 1.2e-3);
}

TEST_F(KdaPrefillSm90, RefusesByName) {
  KdaShape shape = served_shape(DType::kBF16);
  shape.K = 64;
  EXPECT_NE(judge(shape, {{1, 0, 20}}).find("K and V must be 128, got 64 and 128"),
            std::string::npos);
  shape = served_shape(DType::kBF16);
  shape.out = DType::kF32;
  EXPECT_NE(judge(shape, {{1, 0, 20}}).find("out differs from q in dtype"), std::string::npos);
}

}  // namespace
}  // namespace linestate::testing
