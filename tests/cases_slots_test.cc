// Cases P01, P02, P03, P07, P21 and P27 of docs/cases.md: which slot a row means, and whose bytes
// are in it.
#include <climits>

#include "linestate/ops/causal_conv1d.h"
#include "linestate/ops/kda_verify.h"
#include "linestate/ops/lightning.h"
#include "ops/causal_conv1d/conv_case.h"
#include "ops/kda/kda_verify_case.h"
#include "testing/lightning_case.h"
#include "tests/oracle_case.h"

namespace linestate::testing {
namespace {

TEST(Cases, P01_PaddingRowsTouchNothing) {
  for (const std::string& kernel : kKernelRows) {
    for (const int32_t pad : {-1, 8, INT32_MIN, INT32_MAX}) {
      KdaProblem p = make_kda_problem(base_kda_shape(), 4, 1);
      p.set_rows({{3, 9, 1}, {pad, 9, 1}, {pad, 9, 1}, {pad, 9, 1}});
      const HostTensor before = p.state.clone();
      expect_kda_call(KdaPhase::kDecode, p, kernel, "one step");
      expect_untouched(p.state, before, {3}, "one step");
      EXPECT_NE(bit_difference(pool_slot(p.state, 3), pool_slot(before, 3)), "");
      EXPECT_EQ(nonzero(part(p.out, 1, 4)), "");
      const int steps = pad == -1 ? 200 : 3;
      for (int i = 1; i < (kernel == "cpu" ? steps : 20); ++i) {
        fill_nan(p.out);
        ASSERT_EQ(run_kda(KdaPhase::kDecode, p.params(), kernel), "");
        ASSERT_EQ(nonzero(part(p.out, 1, 4)), "") << i;
      }
      expect_untouched(p.state, before, {3}, "many steps");
    }
  }
}

TEST(Cases, P02_WarmUpLeavesEverySlotFreshAndEverySlotGivesTheSame) {
  for (const std::string& kernel : kKernelRows) {
    KdaShape shape = base_kda_shape();
    shape.H = shape.HV = 1;
    KdaProblem warm = make_kda_problem(shape, 4, 2);
    fill_constant(warm.state, 0.0);
    warm.set_rows({{-1, 1, 1}, {-1, 1, 1}, {-1, 1, 1}, {-1, 1, 1}});
    ASSERT_EQ(run_kda(KdaPhase::kDecode, warm.params(), kernel), "");
    const HostTensor zero(DType::kF32, warm.state.shape());
    EXPECT_EQ(bit_difference(warm.state, zero), "");

    KdaProblem first = make_kda_problem(shape, 5, 3);
    for (int32_t slot = 0; slot < 8; ++slot) {
      KdaProblem p = make_kda_problem(shape, 5, 3);
      p.state = warm.state.clone();
      p.set_rows({{slot, 0, 5}});
      expect_kda_call(KdaPhase::kPrefill, p, kernel, "slot " + std::to_string(slot));
      if (slot > 0) {
        EXPECT_EQ(bit_difference(p.out, first.out), "") << slot;
        EXPECT_EQ(bit_difference(pool_slot(p.state, slot), pool_slot(first.state, 0)), "") << slot;
      } else {
        first = std::move(p);
      }
    }
  }
}

void fill_slot_nan(HostTensor& pool, int64_t slot) {
  fill_nan(pool.view().slice(0, slot, slot + 1));
}

TEST(Cases, P03_AFreshRowNeverSeesTheLastTenant) {
  for (const std::string& kernel : kKernelRows) {
    for (const int32_t tokens : {1, 3, 0}) {  // 0: the slot is zero, then one token is decoded
      KdaProblem p = make_kda_problem(base_kda_shape(), std::max(tokens, 1), 4);
      fill_slot_nan(p.state, 2);
      p.set_rows({{2, 0, tokens}});
      KdaProblem clean = p.clone();
      fill_constant(clean.state, 0.0);
      clean.set_rows({{2, 0, std::max(tokens, 1)}});
      const KdaExpected expected = expect_kda(clean);
      ASSERT_EQ(run_kda(KdaPhase::kPrefill, p.params(), kernel), "");
      if (tokens == 0) {
        EXPECT_EQ(nonzero(pool_slot(p.state, 2)), "");
        p.set_rows({{2, 1, 1}});
        ASSERT_EQ(run_kda(KdaPhase::kDecode, p.params(), kernel), "");
      }
      expect_close(p.out, expected.out, 1e-6, "out");
      expect_close(pool_slot(p.state, 2), pool_slot(expected.state, 2), 5e-7, "state");
    }
  }
}

TEST(Cases, P03_AFreshVerifyRowNeverSeesTheLastTenant) {
  for (const std::string& kernel : kKernelRows) {
    KdaVerifyCase test = make_verify_case(base_kda_shape(), {{2, 0, 4}}, 5);
    fill_slot_nan(test.problem.state, 2);
    fill_constant(test.window.view().slice(0, 2, 3), 1e30);
    KdaProblem clean = test.problem.clone();
    fill_constant(clean.state, 0.0);
    const KdaExpected expected = expect_kda(clean);
    ASSERT_EQ(test.verify(kernel), "");
    expect_close(test.problem.out, expected.out, 1e-6, "verify");
    ASSERT_EQ(test.commit(kernel, {3}), "");
    expect_close(pool_slot(test.problem.state, 2), pool_slot(expected.state, 2), 5e-7, "commit");
    for (int64_t c = 0; c < kConvChannels; ++c) {
      for (int64_t j = 0; j < 3; ++j) {
        EXPECT_EQ(test.window.at((2 * kConvChannels + c) * 3 + j),
                  test.conv_x.at((1 + j) * kConvChannels + c));
      }
    }
    // One accepted token: the rest of the window is the fresh sequence's zeros.
    fill_slot_nan(test.problem.state, 2);
    fill_constant(test.window.view().slice(0, 2, 3), 1e30);
    ASSERT_EQ(test.commit(kernel, {0}), "");
    EXPECT_TRUE(compare(pool_slot(test.problem.state, 2), pool_slot(test.problem.state, 2)).finite);
    EXPECT_EQ(nonzero(copy_of(pool_slot(test.window, 2)).view().slice(2, 0, 2)), "");
  }
}

TEST(Cases, P03_AFreshConvolutionAndLightningRowNeverSeeTheLastTenant) {
  for (const std::string& kernel : kKernelRows) {
    for (const int32_t tokens : {1, 3, 0}) {
      ConvCase c({}, {{2, RowKind::kExtend, 0, tokens, -1, -1}});
      fill_constant(c.window.view().slice(0, 2, 3), 1e30);
      const ConvExpected expected = conv_oracle(c);
      ASSERT_EQ(
          call_op(causal_conv1d_prefill, causal_conv1d_prefill_workspace_bytes, c.params(), kernel),
          "");
      if (tokens > 0) expect_close(c.out, expected.out, 1e-6, "conv");
      EXPECT_EQ(bit_difference(c.window, expected.window), "");

      LightningShape shape;
      shape.rows = {{2, 0, tokens}};
      LightningCase lightning(shape);
      fill_slot_nan(lightning.state, 2);
      const LightningExpected want = expect_lightning(lightning);
      ASSERT_EQ(
          call_op(lightning_prefill, lightning_prefill_workspace_bytes, lightning.params, kernel),
          "");
      EXPECT_EQ(disagreement(lightning, want), "");
    }
  }
}

// Record tensors inside larger buffers of NaN: only the batch's own tokens may be written.
struct GuardedRecord {
  static constexpr int64_t kGuard = 4;
  HostTensor u, k, norm, alpha;
  GuardedRecord(const KdaShape& s, int64_t T)
      : u(DType::kF32, {T + 2 * kGuard, s.HV, s.V}),
        k(s.io, {T + 2 * kGuard, s.H, s.K}),
        norm(DType::kF32, {T + 2 * kGuard, s.H}),
        alpha(DType::kF32, {T + 2 * kGuard, s.HV, s.K}) {
    for (HostTensor* tensor : {&u, &k, &norm, &alpha}) fill_nan(*tensor);
  }
  KdaRecord record() {
    auto inside = [](HostTensor& t) { return t.view().slice(0, kGuard, t.shape()[0] - kGuard); };
    return {inside(u), inside(k), inside(norm), inside(alpha)};
  }
  void expect_guards() const {
    for (const HostTensor* t : {&u, &k, &norm, &alpha}) {
      const int64_t T = t->shape()[0];
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, kGuard}, {T - kGuard, T}}) {
        HostTensor nan = copy_of(part(*t, begin, end));
        fill_nan(nan);
        EXPECT_EQ(bit_difference(part(*t, begin, end), nan), "");
      }
    }
  }
};

void check_p07(const std::vector<KdaRow>& rows, int64_t slots, const std::string& kernel) {
  KdaShape shape = small_kda_shape();
  shape.slots = slots;
  KdaVerifyCase test = make_verify_case(shape, rows, 7);
  GuardedRecord guarded(shape, test.problem.tokens());
  const HostTensor before = test.problem.state.clone();
  KdaVerifyParams params = test.verify_params();
  params.record = guarded.record();
  ASSERT_EQ(call_op(kda_verify, kda_verify_workspace_bytes, params, kernel), "");
  guarded.expect_guards();
  EXPECT_EQ(bit_difference(test.problem.state, before), "") << "verify wrote the pool";
  for (int32_t node = 0; node < 4; ++node) {
    HostTensor state = before.clone();
    KdaCommitParams commit = test.commit_params();
    commit.record = guarded.record();
    commit.conv_x = {};
    commit.window = {};
    commit.state = state;
    std::vector<int32_t> accepted;
    for (const KdaRow& row : rows) accepted.push_back(row.slot < 0 ? -1 : node);
    const HostTensor nodes = i32_tensor(accepted);
    commit.accepted_node = nodes;
    ASSERT_EQ(call_op(kda_commit, kda_commit_workspace_bytes, commit, kernel), "");
    KdaProblem prefix = test.problem.clone();
    for (int64_t n = 0; n < prefix.num_valid.num_elements(); ++n) prefix.num_valid.set(n, node + 1);
    expect_close(state, expect_kda(prefix).state, 5e-7, "node " + std::to_string(node));
  }
}

TEST(Cases, P07_RecordsBelongToTheBatchRowNotToTheSlot) {
  for (const std::string& kernel : kKernelRows) {
    check_p07({{63, 5, 4}, {40, 7, 4}}, 64, kernel);
    check_p07({{1, 5, 4}, {0, 7, 4}, {-1, 0, 4}, {-1, 0, 4}}, 2, kernel);
  }
}

// Slot ids in column 0 of a [B, 5] table whose other columns name live slots.
TEST(Cases, P21_SlotIdsMayBeAStridedView) {
  for (const std::string& kernel : kKernelRows) {
    for (const int64_t B : {1, 2, 7}) {
      KdaShape shape = small_kda_shape();
      shape.slots = 40;
      KdaProblem compact = make_kda_problem(shape, B, 21);
      std::vector<KdaRow> rows;
      std::vector<int32_t> narrow(3, 39);  // storage offset 3
      std::vector<int64_t> wide(3, 39);
      std::vector<int64_t> live;
      for (int32_t n = 0; n < B; ++n) {
        rows.push_back({5 * n + 2, 3, 1});
        live.push_back(5 * n + 2);
        for (const int32_t column : {2, 0, 1, 3, 4}) {
          narrow.push_back(5 * n + column);
          wide.push_back(5 * n + column);
        }
      }
      compact.set_rows(rows);
      KdaProblem strided = compact.clone();
      KdaProblem strided64 = compact.clone();
      const HostTensor before = compact.state.clone();
      const HostTensor table = i32_tensor(narrow);
      const HostTensor table64 = i64_tensor(wide);
      ASSERT_EQ(run_kda(KdaPhase::kDecode, compact.params(), kernel), "");
      for (auto [problem, tensor] : {std::pair{&strided, &table}, {&strided64, &table64}}) {
        KdaParams p = problem->params();
        p.rows.slot = tensor->view().slice(0, 3, 3 + 5 * B).split(0, 5).select(1, 0);
        ASSERT_EQ(p.rows.slot.stride[0], 5);
        ASSERT_EQ(run_kda(KdaPhase::kDecode, p, kernel), "");
        EXPECT_EQ(bit_difference(problem->state, compact.state), "") << B;
        EXPECT_EQ(bit_difference(problem->out, compact.out), "") << B;
        expect_untouched(problem->state, before, live, "other columns");
      }
    }
  }
}

void check_p27(const std::vector<int32_t>& slots, int64_t P, int64_t dim,
               const std::string& kernel) {
  LightningShape shape;
  shape.heads = 8;
  shape.dim = dim;
  shape.slots = P;
  for (const int32_t slot : slots) shape.rows.push_back({slot, 5, 1});
  LightningCase test(shape);
  fill_constant(test.k, 0.0);
  for (int64_t s = 0; s < P; ++s) {
    fill_constant(test.state.view().slice(0, s, s + 1), static_cast<double>(s + 1));
  }
  const HostTensor before = test.state.clone();
  ASSERT_EQ(call_op(lightning_decode, lightning_decode_workspace_bytes, test.params, kernel), "");
  HostTensor expected(DType::kF64, test.out.shape());
  HostTensor state = cast_of(before.view(), DType::kF64);
  std::vector<int64_t> live;
  for (size_t n = 0; n < slots.size(); ++n) {
    live.push_back(slots[n]);
    for (int64_t h = 0; h < 8; ++h) {
      const double lambda = std::exp(-test.slopes.at(h));
      const int64_t at = (static_cast<int64_t>(n) * 8 + h) * dim;
      double sum = 0.0;
      for (int64_t d = 0; d < dim; ++d) sum += test.q.at(at + d);
      for (int64_t d = 0; d < dim; ++d) {
        expected.set(at + d, test.params.scale * lambda * (slots[n] + 1) * sum);
      }
      fill_constant(state.view().slice(0, slots[n], slots[n] + 1).slice(1, h, h + 1),
                    lambda * (slots[n] + 1));
    }
  }
  expect_close(test.out, expected, 1e-6, "out");
  expect_close(test.state, state, 5e-7, "state");
  expect_untouched(test.state, before, live, "other slots");
}

TEST(Cases, P27_LightningDecodeUsesTheSlotVector) {
  for (const std::string& kernel : kKernelRows) {
    check_p27({2, 0, 5, 1}, 6, 128, kernel);
    check_p27({1, 5, 0, 2}, 6, 32, kernel);
    check_p27({61}, 64, 16, kernel);
  }
}

}  // namespace
}  // namespace linestate::testing
