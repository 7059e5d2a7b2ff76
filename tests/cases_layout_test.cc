// Cases P20, P22, P28, P29 and P30 of docs/cases.md: layout, strides, heads and the window.
#include "linestate/model_config.h"
#include "linestate/ops/causal_conv1d.h"
#include "linestate/ops/lightning.h"
#include "linestate/ops/state_ops.h"
#include "linestate/state_pool.h"
#include "ops/causal_conv1d/conv_case.h"
#include "testing/lightning_case.h"
#include "tests/oracle_case.h"

namespace linestate::testing {
namespace {

KdaParams tokens_of(KdaProblem& problem, int64_t begin, int64_t end) {
  KdaParams p = problem.params();
  for (ConstTensorView* t : {&p.q, &p.k, &p.v, &p.gate, &p.beta}) *t = t->slice(0, begin, end);
  p.out = p.out.slice(0, begin, end);
  return p;
}

TEST(Cases, P20_AnAsymmetricStateThroughEveryPairOfKernels) {
  KdaShape shape = base_kda_shape();
  shape.H = shape.HV = 1;
  shape.io = shape.out = DType::kF32;
  for (const std::string& prefill : kKernelRows) {
    for (const std::string& decode : kKernelRows) {
      KdaProblem p = make_kda_problem(shape, 131, 200);
      HostTensor a(DType::kF32, {128}), b(DType::kF32, {128});
      fill_normal(a, 201);
      fill_normal(b, 202);
      for (int64_t r = 0; r < 128; ++r) {  // S0 = a b^T
        for (int64_t c = 0; c < 128; ++c) p.state.set((2 * 128 + r) * 128 + c, a.at(r) * b.at(c));
      }
      KdaProblem whole = p.clone();
      whole.set_rows({{2, 64, 131}});
      const KdaExpected expected = expect_kda(whole);
      p.set_rows({{2, 64, 130}});
      ASSERT_EQ(run_kda(KdaPhase::kPrefill, tokens_of(p, 0, 130), prefill), "");
      p.set_rows({{2, 194, 1}});
      ASSERT_EQ(run_kda(KdaPhase::kDecode, tokens_of(p, 130, 131), decode), "");
      expect_close(p.out, expected.out, 1e-6, prefill + " and " + decode);
      expect_close(p.state, expected.state, 5e-7, prefill + " and " + decode);

      // Export in the other orientation.
      HostTensor turned(DType::kF32, {1, 1, 128, 128});
      const ConstTensorView src[] = {p.state.view()};
      const TensorView dst[] = {turned.view().transpose(2, 3)};
      const HostTensor from = i32_tensor({2}), to = i32_tensor({0});
      ASSERT_TRUE(state_copy({src, dst, from, to}, {}, decode).ok());
      for (const auto& [r, c] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {100, 3}}) {
        EXPECT_EQ(turned.at(c * 128 + r), p.state.at((2 * 128 + r) * 128 + c));
      }
    }
  }
  ModelConfig model;
  LayerSpec kda;
  kda.heads = {1, 1, 32, 48};
  LayerSpec lightning;
  lightning.kind = LayerKind::kLightning;
  lightning.layer_id = 1;
  lightning.heads = {1, 1, 32, 32};
  model.linear_layers = {kda, lightning};
  const PoolSpec spec = make_pool_spec(model, DType::kF32, DType::kBF16);
  EXPECT_EQ(spec.layers[0].layout, StateLayout::kVK);
  EXPECT_EQ(spec.layers[1].layout, StateLayout::kKV);
  const StatePool pool = *StatePool::create(spec, 2);
  EXPECT_EQ(pool.recurrent(0).shape[2], 48) << "[P, HV, V, K]";
  EXPECT_EQ(pool.recurrent(0).shape[3], 32);
}

TEST(Cases, P22_PaddedAndOffsetTensorsGiveTheBitsOfTheCompactOnes) {
  for (const std::string& kernel : kKernelRows) {
    for (const KdaPhase phase : {KdaPhase::kPrefill, KdaPhase::kDecode}) {
      KdaShape shape = base_kda_shape();
      shape.H = shape.HV = 2;
      KdaProblem compact = make_kda_problem(shape, 33, 220);
      compact.shape.slots = 8;
      if (phase == KdaPhase::kDecode) {
        compact.set_rows({{2, 64, 1}, {5, 1, 1}});
      } else {
        compact.set_rows({{2, 64, 20}, {5, 0, 13}});
      }
      KdaProblem other = compact.clone();
      const int64_t T = phase == KdaPhase::kDecode ? 2 : 33;
      ASSERT_EQ(run_kda(phase, tokens_of(compact, 0, T), kernel), "");
      KdaParams p = tokens_of(other, 0, T);
      PaddedCopy q(p.q, 128, 0);  // backing [T, 2, 256]
      PaddedCopy beta(p.beta, 38, 5);
      PaddedCopy state(p.state, 128, 1024);  // rows 256 apart, behind other things
      PaddedCopy out(p.out, 16, 32);
      ASSERT_EQ(q.view.stride[0], 512);
      ASSERT_EQ(beta.view.stride[0], 40);
      p.q = q.view;
      p.beta = beta.view;
      p.state = state.view;
      p.out = out.view;
      ASSERT_EQ(run_kda(phase, p, kernel), "");
      EXPECT_EQ(bit_difference(out.view, tokens_of(compact, 0, T).out), "");
      EXPECT_EQ(bit_difference(state.view, compact.state), "");
      EXPECT_TRUE(state.padding_intact());
      EXPECT_TRUE(out.padding_intact());
    }
  }
}

TEST(Cases, P28_SlopesOfAllShardsAreThoseOfOneRank) {
  constexpr int64_t kHeads = 64, kLayers = 24;
  for (const int64_t layer : {0, 7, 23}) {
    const std::vector<float> whole = *lightning_slopes(kHeads, layer, kLayers);
    const double factor = 1.0 - static_cast<double>(layer) / (kLayers - 1) + 1e-5;
    for (int64_t h = 0; h < kHeads; ++h) {
      const double base = std::pow(2.0, -8.0 * static_cast<double>(h + 1) / kHeads);
      EXPECT_NEAR(whole[static_cast<size_t>(h)], base * factor, 2e-7 * base);
    }
    for (const int32_t tp : {1, 2, 4, 8}) {
      std::vector<float> joined;
      for (int32_t rank = 0; rank < tp; ++rank) {
        const auto part = *lightning_slopes(kHeads, layer, kLayers, {rank, tp});
        joined.insert(joined.end(), part.begin(), part.end());
      }
      EXPECT_EQ(joined, whole) << tp;
    }
  }
}

TEST(Cases, P28_DecodeReadsTheSlopesOfItsShard) {
  for (const std::string& kernel : kKernelRows) {
    for (const int32_t rank : {0, 1, 2, 3}) {
      LightningShape shape;
      shape.heads = 16;
      shape.dim = 16;
      shape.rows = {{1, 5, 1}};
      LightningCase test(shape);
      const std::vector<float> slopes = *lightning_slopes(64, 3, 24, {rank, 4});
      test.slopes = f32_tensor(slopes);
      test.bind();
      fill_constant(test.k, 0.0);
      fill_constant(test.state, 1.0);
      ASSERT_EQ(call_op(lightning_decode, lightning_decode_workspace_bytes, test.params, kernel),
                "");
      for (int64_t h = 0; h < 16; ++h) {
        EXPECT_NEAR(test.state.at((16 + h) * 256), std::exp(-slopes[static_cast<size_t>(h)]), 1e-7);
      }
      const HostTensor twice = f32_tensor(*lightning_slopes(64, 3, 24, {rank / 2, 2}));
      test.params.slopes = twice;
      EXPECT_NE(call_op(lightning_decode, lightning_decode_workspace_bytes, test.params, kernel)
                    .find("slopes"),
                std::string::npos);
    }
    KdaProblem p = make_kda_problem(small_kda_shape(), 1, 280);
    p.set_rows({{0, 0, 1}});
    KdaParams params = p.params();
    const HostTensor long_vector(DType::kF32, {4});
    params.A_log = long_vector;
    EXPECT_NE(run_kda(KdaPhase::kDecode, params, kernel).find("A_log"), std::string::npos);
    params = p.params();
    const HostTensor long_bias(DType::kF32, {4, 32});
    params.dt_bias = long_bias;
    EXPECT_NE(run_kda(KdaPhase::kPrefill, params, kernel).find("dt_bias"), std::string::npos);
  }
}

// q and k of value head j are those of key head j / (HV / H).
void check_p29(int64_t H, int64_t HV, int64_t dim, int32_t T, const std::string& kernel) {
  KdaShape shape = small_kda_shape();
  shape.H = H;
  shape.HV = HV;
  shape.K = shape.V = dim;
  shape.slots = 3;
  KdaProblem grouped = make_kda_problem(shape, T, 290);
  KdaShape equal = shape;
  equal.H = HV;
  KdaProblem repeated = make_kda_problem(equal, T, 290);
  for (auto [from, to] : {std::pair{&grouped.q, &repeated.q}, {&grouped.k, &repeated.k}}) {
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t j = 0; j < HV; ++j) {
        const int64_t head = j / (HV / H);
        for (int64_t c = 0; c < dim; ++c) {
          to->set((t * HV + j) * dim + c, from->at((t * H + head) * dim + c));
        }
      }
    }
  }
  for (const KdaPhase phase : {KdaPhase::kPrefill, KdaPhase::kDecode}) {
    const bool prefill = phase == KdaPhase::kPrefill;
    for (KdaProblem* p : {&grouped, &repeated}) {
      if (prefill) p->set_rows({{1, 64, T}});
      if (!prefill) p->set_rows({{2, 3, 1}});
      ASSERT_EQ(run_kda(phase, tokens_of(*p, 0, prefill ? T : 1), kernel), "");
    }
    EXPECT_EQ(bit_difference(grouped.out, repeated.out), "") << H << ", " << HV;
    EXPECT_EQ(bit_difference(grouped.state, repeated.state), "") << H << ", " << HV;
  }
}

TEST(Cases, P29_GroupedValueHeads) {
  check_p29(16, 32, 128, 256, "cpu");
  for (const std::string& kernel : kKernelRows) {
    for (const auto& [H, HV] :
         {std::pair<int64_t, int64_t>{16, 32}, {2, 6}, {1, 12}, {6, 6}, {12, 12}, {3, 3}}) {
      check_p29(H, HV, 32, 40, kernel);
    }
    for (const auto& [H, HV, K] :
         {std::tuple<int64_t, int64_t, int64_t>{4, 6, 32}, {2, 2, 40}, {2, 2, 272}}) {
      KdaShape shape = small_kda_shape();
      shape.H = H;
      shape.HV = HV;
      shape.K = K;
      KdaProblem p = make_kda_problem(shape, 1, 291);
      p.set_rows({{0, 0, 1}});
      for (const KdaPhase phase : {KdaPhase::kPrefill, KdaPhase::kDecode}) {
        const HostTensor before = p.state.clone();
        EXPECT_NE(run_kda(phase, p.params(), kernel), "") << H << ", " << HV << ", " << K;
        EXPECT_EQ(bit_difference(p.state, before), "");
      }
    }
  }
}

TEST(Cases, P30_TheWindowIsTheLastInputsOfTheConcatenation) {
  for (const std::string& kernel : kKernelRows) {
    for (const int64_t width : {4, 3, 2}) {
      ConvShape shape;
      shape.channels = 20;
      shape.width = width;
      HostTensor window;
      std::vector<double> history;  // of channel 7
      int64_t start = 9;
      for (const int32_t tokens : {1, 2, 3, 0, 5}) {
        ConvCase c(shape, {{2, RowKind::kExtend, start, tokens, -1, -1}}, -1,
                   static_cast<uint64_t>(300 + start));
        if (window.defined()) c.window = window.clone();
        const auto window_at = [&](int64_t j) {
          return c.window.at((2 * shape.channels + 7) * (width - 1) + j);
        };
        if (history.empty()) {
          for (int64_t j = 0; j < width - 1; ++j) history.push_back(window_at(j));
        }
        const ConvExpected expected = conv_oracle(c);
        ASSERT_EQ(call_op(causal_conv1d_prefill, causal_conv1d_prefill_workspace_bytes, c.params(),
                          kernel),
                  "");
        EXPECT_EQ(bit_difference(c.window, expected.window), "") << tokens;
        if (tokens > 0) expect_close(c.out, expected.out, 1e-6, "out");
        for (int64_t t = 0; t < tokens; ++t) history.push_back(c.x.at(t * shape.channels + 7));
        for (int64_t j = 0; j < width - 1; ++j) {
          const size_t at = history.size() - static_cast<size_t>(width - 1 - j);
          EXPECT_EQ(window_at(j), history[at]);
        }
        window = c.window.clone();
        start += tokens;
      }
      ConvCase fresh(shape, {{2, RowKind::kExtend, 0, 1, -1, -1}});
      ASSERT_EQ(call_op(causal_conv1d_prefill, causal_conv1d_prefill_workspace_bytes,
                        fresh.params(), kernel),
                "");
      for (int64_t j = 0; j < width - 1; ++j) {
        EXPECT_EQ(fresh.window.at((2 * shape.channels + 7) * (width - 1) + j),
                  j == width - 2 ? fresh.x.at(7) : 0.0);
      }
    }
    ConvShape narrow;
    narrow.width = 1;
    ConvCase c(narrow, {{2, RowKind::kExtend, 0, 1, -1, -1}});
    EXPECT_NE(
        call_op(causal_conv1d_prefill, causal_conv1d_prefill_workspace_bytes, c.params(), kernel),
        "");
  }
}

// Every one of the 1024 ways to cut eleven tokens.
TEST(Cases, P30_AnySplitOfElevenTokensGivesTheSameBits) {
  for (const std::string& kernel : kKernelRows) {
    ExecContext one_thread;
    one_thread.num_threads = 1;
    ConvShape shape;
    shape.channels = 12;
    ConvCase whole(shape, {{1, RowKind::kExtend, 5, 11, -1, -1}});
    const HostTensor before = whole.window.clone();
    ASSERT_EQ(call_op(causal_conv1d_prefill, causal_conv1d_prefill_workspace_bytes, whole.params(),
                      kernel),
              "");
    for (uint32_t cuts = 0; cuts < 1024; ++cuts) {
      HostTensor window = before.clone();
      HostTensor out(shape.out, whole.out.shape());
      int32_t begin = 0;
      for (int32_t end = 1; end <= 11; ++end) {
        if (end < 11 && ((cuts >> (end - 1)) & 1u) == 0) continue;
        const HostTensor offsets = i32_tensor({0, end - begin}), start = i32_tensor({5 + begin});
        CausalConv1dParams p = whole.params();
        p.rows = {whole.slot, offsets, start, {}};
        p.x = p.x.slice(0, begin, end);
        p.out = out.view().slice(0, begin, end);
        p.window = window;
        ASSERT_TRUE(causal_conv1d_prefill(p, one_thread, kernel).ok());
        begin = end;
      }
      ASSERT_EQ(bit_difference(out, whole.out), "") << cuts;
      ASSERT_EQ(bit_difference(window, whole.window), "") << cuts;
    }
  }
}

}  // namespace
}  // namespace linestate::testing
