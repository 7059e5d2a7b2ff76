// The row "cuda_sm90" of kda_prefill, which `auto` does not choose: golden files, the row contract,
// dtypes, and what it refuses. Calls run through MirroredCall: eagerly and from a graph, same bits.
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
