// Cases P05 and P23 to P26 of docs/cases.md: buckets, tails, empty rows and mixed lengths.
#include "linestate/ops/causal_conv1d.h"
#include "linestate/ops/lightning.h"
#include "ops/causal_conv1d/conv_case.h"
#include "testing/lightning_case.h"
#include "tests/oracle_case.h"

namespace linestate::testing {
namespace {

TEST(Cases, P05_TokensBehindTheLastRowAreNotRead) {
  for (const std::string& kernel : kKernelRows) {
    for (const bool padded_rows : {false, true}) {
      std::vector<KdaRow> rows = {{4, 0, 70}, {2, 0, 60}};
      if (padded_rows) rows.insert(rows.end(), 2, KdaRow{-1, 0, 0});
      KdaProblem p = make_kda_problem(small_kda_shape(), 256, 50);
      for (HostTensor* t : {&p.q, &p.k, &p.v, &p.gate, &p.beta})
        fill_nan(t->view().slice(0, 130, 256));
      p.set_rows(rows);
      const HostTensor before = p.state.clone();
      expect_kda_call(KdaPhase::kPrefill, p, kernel, "kda");
      expect_untouched(p.state, before, {4, 2}, "kda");
      EXPECT_EQ(nonzero(part(p.out, 130, 256)), "");

      LightningShape shape;
      for (const KdaRow& row : rows) shape.rows.push_back({row.slot, 0, row.tokens});
      shape.dim = 32;
      shape.capacity = 256;
      LightningCase lightning(shape);
      for (HostTensor* t : {&lightning.q, &lightning.k, &lightning.v}) {
        fill_nan(t->view().slice(0, 130, 256));
      }
      const LightningExpected want = expect_lightning(lightning);
      ASSERT_EQ(
          call_op(lightning_prefill, lightning_prefill_workspace_bytes, lightning.params, kernel),
          "");
      EXPECT_EQ(disagreement(lightning, want), "");

      std::vector<Row> conv_rows;
      for (const KdaRow& row : rows) {
        conv_rows.push_back({row.slot, RowKind::kExtend, 0, row.tokens, -1, -1});
      }
      ConvCase conv({}, conv_rows, 256);
      fill_nan(conv.x.view().slice(0, 130, 256));
      const ConvExpected expected = conv_oracle(conv);
      ASSERT_EQ(call_op(causal_conv1d_prefill, causal_conv1d_prefill_workspace_bytes, conv.params(),
                        kernel),
                "");
      expect_close(conv.out, expected.out, 1e-6, "conv");
      EXPECT_EQ(bit_difference(conv.window, expected.window), "");
      EXPECT_EQ(nonzero(part(conv.out, 130, 256)), "");
    }
  }
}

TEST(Cases, P23_FinalStateAtEveryLength) {
  for (const std::string& kernel : kKernelRows) {
    for (const int32_t T : {1, 15, 16, 17, 63, 65, 500, 1000}) {
      KdaShape shape = small_kda_shape();
      shape.K = shape.V = T > 100 ? 16 : 32;
      shape.HV = 4;
      KdaProblem p = make_kda_problem(shape, 2 * T + 64, 230);
      for (HostTensor* t : {&p.q, &p.k, &p.v, &p.gate, &p.beta}) {
        fill_nan(t->view().slice(0, 2 * T, 2 * T + 64));
      }
      p.set_rows({{1, 0, T}, {6, 64, T}});
      expect_kda_call(KdaPhase::kPrefill, p, kernel, "T = " + std::to_string(T));

      LightningShape light;
      light.rows = {{1, 0, T}, {5, 64, T}};
      light.dim = 16;
      light.capacity = 2 * T + 64;
      LightningCase lightning(light);
      for (HostTensor* t : {&lightning.q, &lightning.k, &lightning.v}) {
        fill_nan(t->view().slice(0, 2 * T, 2 * T + 64));
      }
      const LightningExpected want = expect_lightning(lightning);
      ASSERT_EQ(
          call_op(lightning_prefill, lightning_prefill_workspace_bytes, lightning.params, kernel),
          "");
      EXPECT_EQ(disagreement(lightning, want), "") << T;
    }
  }
}

TEST(Cases, P23_SixtyThreeTokensAndOneMoreAreSixtyFour) {
  for (const std::string& kernel : kKernelRows) {
    KdaProblem whole = make_kda_problem(small_kda_shape(), 64, 231);
    KdaProblem pieces = whole.clone();
    whole.set_rows({{1, 0, 64}});
    ASSERT_EQ(run_kda(KdaPhase::kPrefill, whole.params(), kernel), "");
    for (const auto& [begin, end] : {std::pair<int32_t, int32_t>{0, 63}, {63, 64}}) {
      pieces.set_rows({{1, begin, end - begin}});
      KdaParams p = pieces.params();
      for (ConstTensorView* t : {&p.q, &p.k, &p.v, &p.gate, &p.beta}) *t = t->slice(0, begin, end);
      p.out = p.out.slice(0, begin, end);
      ASSERT_EQ(run_kda(KdaPhase::kPrefill, p, kernel), "");
    }
    expect_close(pieces.state, whole.state, 5e-7, "state");
    expect_close(pieces.out, whole.out, 1e-6, "out");
    if (kernel == "ref") {
      EXPECT_EQ(bit_difference(pieces.state, whole.state), "");
      EXPECT_EQ(bit_difference(pieces.out, whole.out), "");
    }
  }
}

// 4720 tokens in 127 sequences: the workspace is exactly what the op asked for, with a guard.
TEST(Cases, P24_ScratchOfManyShortSequences) {
  for (const std::string& kernel : kKernelRows) {
    for (const int32_t sequences : {127, 128}) {
      KdaShape shape = small_kda_shape();
      shape.H = shape.HV = 6;
      shape.K = kernel == "cpu" && sequences == 127 ? 128 : 16;
      shape.V = 16;
      shape.slots = sequences;
      std::vector<KdaRow> rows;
      for (int32_t n = 0; n < sequences; ++n) rows.push_back({sequences - 1 - n, 0, 16 << (n % 3)});
      if (sequences == 127) {
        ASSERT_EQ(total_tokens(rows), 4720);
      }
      KdaProblem p = make_kda_problem(shape, total_tokens(rows), 240);
      p.set_rows(rows);
      expect_kda_call(KdaPhase::kPrefill, p, kernel, std::to_string(sequences));
    }
    for (const int32_t T : {80, 129}) {
      KdaProblem p = make_kda_problem(small_kda_shape(), T, 241);
      p.set_rows({{0, 0, T}});
      expect_kda_call(KdaPhase::kPrefill, p, kernel, "T = " + std::to_string(T));
    }
    // Worst case: one token in every sequence.
    KdaShape shape = small_kda_shape();
    shape.slots = 200;
    std::vector<KdaRow> rows;
    for (int32_t n = 0; n < 200; ++n) rows.push_back({n, 1, 1});
    KdaProblem p = make_kda_problem(shape, 200, 242);
    p.set_rows(rows);
    expect_kda_call(KdaPhase::kPrefill, p, kernel, "one token each");
  }
}

TEST(Cases, P25_EmptyRowsAnywhere) {
  const std::vector<std::vector<int32_t>> batches = {{128, 0, 128},   {0, 128}, {128, 0},
                                                     {5, 0, 0, 0, 5}, {0, 1},   {128, 0, 1, 0, 64}};
  for (const std::string& kernel : kKernelRows) {
    for (const std::vector<int32_t>& lengths : batches) {
      std::vector<KdaRow> rows, busy;
      std::vector<int64_t> live;
      for (const int32_t tokens : lengths) {
        rows.push_back({static_cast<int32_t>(rows.size()) + 1, 64, tokens});
        if (tokens == 0) continue;
        busy.push_back(rows.back());
        live.push_back(rows.back().slot);
      }
      KdaProblem p = make_kda_problem(small_kda_shape(), total_tokens(rows), 250);
      KdaProblem without = p.clone();
      p.set_rows(rows);
      without.set_rows(busy);
      const HostTensor before = p.state.clone();
      expect_kda_call(KdaPhase::kPrefill, p, kernel, "with empty rows");
      expect_untouched(p.state, before, live, "empty rows");
      ASSERT_EQ(run_kda(KdaPhase::kPrefill, without.params(), kernel), "");
      EXPECT_EQ(bit_difference(p.state, without.state), "");
      EXPECT_EQ(bit_difference(p.out, without.out), "");
    }
  }
}

TEST(Cases, P26_MixedLengthsAreFiniteAndRepeat) {
  const std::vector<KdaRow> rows = {{6, 9, 1}, {0, 17, 1}, {3, 64, 512}, {1, 5, 1}, {4, 0, 256}};
  for (const std::string& kernel : kKernelRows) {
    KdaShape shape = small_kda_shape();
    shape.K = shape.V = 16;
    KdaProblem start = make_kda_problem(shape, 771, 260);
    for (const int64_t slot : {6, 0, 1}) {
      fill_normal(start.state.view().slice(0, slot, slot + 1), 261, 100.0);
    }
    start.set_rows(rows);
    KdaProblem first = start.clone();
    expect_kda_call(KdaPhase::kPrefill, first, kernel, "mixed", 1e-6, 5e-7);
    for (int repeat = 1; repeat < (kernel == "cpu" ? 100 : 5); ++repeat) {
      KdaProblem again = start.clone();
      ASSERT_EQ(run_kda(KdaPhase::kPrefill, again.params(), kernel, 1 + repeat % 3), "");
      ASSERT_EQ(bit_difference(again.out, first.out), "") << repeat;
      ASSERT_EQ(bit_difference(again.state, first.state), "") << repeat;
    }
    for (const auto& [row, token] : {std::pair<size_t, int64_t>{0, 0}, {1, 1}, {3, 514}}) {
      KdaProblem one = start.clone();
      one.set_rows({{rows[row].slot, rows[row].start, 1}});
      KdaParams p = one.params();
      for (ConstTensorView* t : {&p.q, &p.k, &p.v, &p.gate, &p.beta}) {
        *t = t->slice(0, token, token + 1);
      }
      p.out = p.out.slice(0, token, token + 1);
      ASSERT_EQ(run_kda(KdaPhase::kDecode, p, kernel), "");
      const int64_t slot = rows[row].slot;
      const ConstTensorView out = part(first.out, token, token + 1);
      expect_close(pool_slot(one.state, slot), pool_slot(first.state, slot), 5e-7, "decode");
      expect_close(part(one.out, token, token + 1), out, 1e-6, "decode");
      if (kernel != "ref") continue;  // cpu prefill works in blocks: other rounding than decode
      EXPECT_EQ(bit_difference(pool_slot(one.state, slot), pool_slot(first.state, slot)), "");
      EXPECT_EQ(bit_difference(part(one.out, token, token + 1), out), "");
    }
  }
}

}  // namespace
}  // namespace linestate::testing
