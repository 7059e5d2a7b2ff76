// Cases P32, P33, P35 and P36 of docs/cases.md: allocation, dispatch, memory, determinism and
// what the library needs around it.
#include <link.h>

#include "backends/backend_fixture.h"
#include "linestate/device.h"
#include "linestate/forward_batch.h"
#include "linestate/kernel_registry.h"
#include "linestate/ops/lightning.h"
#include "linestate/verify_records.h"
#include "testing/lightning_case.h"
#include "testing/sparse_memory.h"
#include "tests/oracle_case.h"

namespace linestate::testing {
namespace {

/// A prefill of T tokens and N rows described, not run: the token tensors are address space.
struct DescribedPrefill {
  KdaProblem small;
  SparseMemory memory;
  HostTensor slot, offsets, start;
  KdaParams params;
  DescribedPrefill(KdaProblem problem, int64_t T, int64_t N)
      : small(std::move(problem)), memory(T * small.shape.HV * 128 * 4) {
    params = small.params();
    std::vector<int32_t> slots, cu{0}, starts;
    for (int64_t n = 0; n < N; ++n) {
      slots.push_back(static_cast<int32_t>(n));
      cu.push_back(static_cast<int32_t>(T * (n + 1) / N));
      starts.push_back(0);
    }
    slot = i32_tensor(slots);
    offsets = i32_tensor(cu);
    start = i32_tensor(starts);
    params.rows = {slot, offsets, start, {}};
    for (ConstTensorView* t : {&params.q, &params.k, &params.v, &params.gate, &params.beta}) {
      t->data = memory.data();
      t->shape[0] = T;
    }
    params.out.shape[0] = T;
    out_memory = std::make_unique<SparseMemory>(T * small.shape.HV * 128 * 4);
    params.out.data = out_memory->data();
  }
  std::unique_ptr<SparseMemory> out_memory;
};

TEST(Cases, P32_WorkspaceDoesNotGrowAndTheKernelIsNamed) {
  KdaShape shape = small_kda_shape();
  shape.H = shape.HV = 12;
  shape.K = shape.V = 128;
  ExecContext context;
  context.num_threads = 1;
  for (const std::string& kernel : kKernelRows) {
    int64_t first = -1;
    for (const int64_t T : {4096, 8192, 16384, 65536}) {
      for (const int64_t N : {1, 8}) {
        DescribedPrefill call(make_kda_problem(shape, 1, 320), T, N);
        const Result<int64_t> bytes = kda_prefill_workspace_bytes(call.params, context, kernel);
        ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
        if (first < 0) first = *bytes;
        EXPECT_EQ(*bytes, first) << kernel << ", T = " << T << ", N = " << N;
        const KernelChoice choice = explain_kda_prefill(call.params, context, kernel);
        EXPECT_EQ(choice.kernel, kernel);
        EXPECT_EQ(choice.workspace_bytes, *bytes);
        EXPECT_EQ(explain_kda_prefill(call.params, context).kernel, "cpu");
      }
    }
  }
}

TEST(Cases, P32_AFallbackIsCountedNamedAndAnErrorWhenStrict) {
  ExternalKernel<KdaParams> fast;
  fast.name = "fast";
  fast.device = DeviceType::kCpu;
  fast.refuse = [](const KdaParams& p, const ExecContext&, void*) -> std::string {
    return p.q.shape[0] > 64 ? "T: expected at most 64, got more" : "";
  };
  fast.run = [](const KdaParams& p, const ExecContext& context, void*) {
    return kda_prefill(p, context, "ref");
  };
  ASSERT_TRUE(register_kernel<KdaParams>("kda_prefill", fast).ok());
  reset_kernel_uses();
  KdaProblem p = make_kda_problem(small_kda_shape(), 65, 321);
  p.set_rows({{1, 0, 65}});
  const KernelChoice choice = explain_kda_prefill(p.params(), {});
  EXPECT_EQ(choice.kernel, "cpu");
  ASSERT_FALSE(choice.refused.empty());  // behind it the rows of devices that this call is not on
  EXPECT_EQ(choice.refused[0].kernel, "fast");
  EXPECT_NE(choice.refused[0].reason.find("at most 64"), std::string::npos);
  EXPECT_EQ(run_kda(KdaPhase::kPrefill, p.params(), "auto"), "");
  int64_t fallbacks = 0;
  for (const KernelUse& use : kernel_uses()) {
    if (use.op == "kda_prefill" && use.kernel == "cpu") fallbacks = use.fallbacks;
  }
  EXPECT_EQ(fallbacks, 1);
  HostTensor workspace(DType::kU8, {1 << 22});
  ExecContext strict;
  strict.strict = true;
  strict.workspace = {workspace.data(), workspace.bytes()};
  const HostTensor before = p.state.clone();
  EXPECT_EQ(kda_prefill(p.params(), strict).code(), StatusCode::kUnsupported);
  EXPECT_EQ(bit_difference(p.state, before), "");
  EXPECT_TRUE(unregister_kernel("kda_prefill", "fast").ok());
}

TEST(Cases, P33_DraftsCostRecordsNotStates) {
  ModelConfig model;
  model.num_layers = 1;
  LayerSpec layer;
  layer.heads = {12, 12, 128, 128};
  layer.gate_form = KdaGate::kBounded;
  layer.lower_bound = -5.0f;
  model.linear_layers = {layer};
  const PoolSpec spec = make_pool_spec(model, DType::kF32, DType::kBF16);
  EXPECT_EQ(12 * 128 * 128 * 4, 786432);
  const int64_t window = 3 * 12 * 128 * 3 * 2;
  EXPECT_EQ(bytes_per_slot(spec), 786432 + window);
  // u, raw k, inverse norm, alpha, and the convolution's inputs.
  const int64_t record = 12 * 128 * 4 + 12 * 128 * 2 + 12 * 4 + 12 * 128 * 4 + 3 * 12 * 128 * 2;
  EXPECT_EQ(VerifyRecords::bytes_per_token(model, DType::kBF16), record);
  // 8 drafts of a request: a fourth of one state, where full states would be eight.
  EXPECT_LT(8 * record, bytes_per_slot(spec) / 3);
  const int64_t budget = 8 * bytes_per_slot(spec) + 64 * record;
  EXPECT_EQ(max_slots(spec, budget - 64 * record), 8) << "every request keeps its slot";
  EXPECT_EQ(max_slots(spec, bytes_per_slot(spec) - 1), 0);
  EXPECT_TRUE(VerifyRecords::create(model, DType::kBF16, 64).ok());
}

/// Tokens [begin, end) of `p`'s row, in slot 1 of `state`.
void run_piece(KdaProblem& p, int32_t begin, int32_t end, int64_t start,
               const std::string& kernel) {
  p.set_rows({{1, start, end - begin}});
  KdaParams params = p.params();
  for (ConstTensorView* t : {&params.q, &params.k, &params.v, &params.gate, &params.beta}) {
    *t = t->slice(0, begin, end);
  }
  params.out = params.out.slice(0, begin, end);
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, params, kernel), "");
}

void copy_tokens(HostTensor& to, int64_t at, const HostTensor& from, int64_t tokens) {
  const int64_t bytes = from.bytes() / from.shape()[0];
  std::memcpy(static_cast<char*>(to.data()) + at * bytes, from.data(),
              static_cast<size_t>(tokens * bytes));
}

// The row of 300 tokens among others of other lengths, `before` of them in front.
void check_batched(const KdaProblem& row, const KdaProblem& alone, size_t before, size_t total,
                   const std::string& kernel) {
  std::vector<KdaRow> rows;
  for (size_t n = 0; n < total; ++n) {
    rows.push_back({static_cast<int32_t>(n), 0, n == before ? 300 : static_cast<int32_t>(n % 20)});
  }
  KdaShape shape = row.shape;
  shape.slots = static_cast<int64_t>(total);
  KdaProblem batch = make_kda_problem(shape, total_tokens(rows), 351);
  batch.A_log = row.A_log.clone();
  batch.dt_bias = row.dt_bias.clone();
  int64_t at = 0;
  for (size_t n = 0; n < before; ++n) at += rows[n].tokens;
  copy_tokens(batch.q, at, row.q, 300);
  copy_tokens(batch.k, at, row.k, 300);
  copy_tokens(batch.v, at, row.v, 300);
  copy_tokens(batch.gate, at, row.gate, 300);
  copy_tokens(batch.beta, at, row.beta, 300);
  batch.set_rows(rows);
  ASSERT_EQ(run_kda(KdaPhase::kPrefill, batch.params(), kernel, 2), "");
  EXPECT_EQ(bit_difference(part(batch.out, at, at + 300), alone.out), "") << total;
  EXPECT_EQ(bit_difference(pool_slot(batch.state, static_cast<int64_t>(before)),
                           pool_slot(alone.state, 1)),
            "")
      << total;
}

TEST(Cases, P35_ARowHasItsOwnBits) {
  for (const std::string& kernel : kKernelRows) {
    KdaShape shape = small_kda_shape();
    shape.K = 64;
    const KdaProblem row = make_kda_problem(shape, 300, 350);
    KdaProblem alone = row.clone();
    run_piece(alone, 0, 300, 0, kernel);
    KdaProblem again = row.clone();
    run_piece(again, 0, 300, 0, kernel);
    EXPECT_EQ(bit_difference(again.out, alone.out), "") << "run to run";
    check_batched(row, alone, 0, 8, kernel);
    check_batched(row, alone, 63, 64, kernel);
    for (const std::vector<int32_t>& cuts :
         {std::vector<int32_t>{0, 128, 256, 300}, {0, 64, 300}}) {
      KdaProblem pieces = row.clone();
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        run_piece(pieces, cuts[i], cuts[i + 1], cuts[i], kernel);
      }
      EXPECT_EQ(bit_difference(pieces.out, alone.out), "") << kernel;
      EXPECT_EQ(bit_difference(pool_slot(pieces.state, 1), pool_slot(alone.state, 1)), "");
    }
    // A zero state that is given: the same bits as none.
    KdaProblem given = row.clone();
    fill_constant(given.state.view().slice(0, 1, 2), 0.0);
    run_piece(given, 0, 300, 64, kernel);
    EXPECT_EQ(bit_difference(given.out, alone.out), "") << kernel;
  }
}

TEST(Cases, P36_NeedsNoTorchNoPythonAndNoDriver) {
  std::string loaded;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* text) {
        *static_cast<std::string*>(text) += std::string(info->dlpi_name) + "\n";
        return 0;
      },
      &loaded);
  for (const char* name : {"libtorch", "libc10", "libpython", "libcuda.so", "libnvrtc"}) {
    EXPECT_EQ(loaded.find(name), std::string::npos) << loaded;
  }
  const std::vector<DeviceInfo> devices = list_devices();
  ASSERT_FALSE(devices.empty());
  EXPECT_EQ(devices[0].device.type, DeviceType::kCpu);
  EXPECT_EQ(cuda_note().empty(), devices.size() > 1) << "says why there is no CUDA device";
}

}  // namespace
}  // namespace linestate::testing
