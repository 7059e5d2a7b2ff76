// One property for each rule of docs/cases.md that is not about every operator's rows (those are in
// rules_rows_test.cc and rules_split_test.cc).
#include <climits>

#include "backends/backend_engine_fixture.h"
#include "linestate/kernel_registry.h"
#include "ops/draft_tree/random_tree_case.h"
#include "testing/sparse_memory.h"
#include "tests/op_probe_case.h"

namespace linestate::testing {
namespace {

Piece piece(RowKind kind, int request, int32_t slot, int64_t start, int32_t tokens,
            int32_t valid = -1) {
  return {request, {slot, kind, start, tokens, valid, -1}, {}};
}
EngineOptions engine(const std::string& kernel) {
  EngineOptions options;
  options.kernel = kernel;
  options.threads = 1;
  return options;
}
std::vector<HostTensor> planes_of(Engine& e) {
  std::vector<HostTensor> out;
  for (const TensorView& plane : e.pool().planes()) out.push_back(copy_of(plane));
  return out;
}

TEST(RulesOfContract, Rule01_OnlyCommitWritesAndItIsTold) {
  for (const std::string& kernel : kKernelRows) {
    Engine e(engine(kernel));
    ASSERT_TRUE(
        e.run({piece(RowKind::kExtend, 1, 5, 0, 20), piece(RowKind::kExtend, 2, 2, 0, 7)}).ok());
    const auto before = planes_of(e);
    ASSERT_TRUE(
        e.run({piece(RowKind::kVerify, 1, 5, 20, 1), piece(RowKind::kVerify, 2, 2, 7, 6)}).ok());
    expect_same(planes_of(e), before, "verify, also of one draft");
    ASSERT_TRUE(e.commit({-1, -1}).ok());
    expect_same(planes_of(e), before, "commit of none");
    for (const int32_t bad : {1, 7, INT32_MAX, -2}) {
      EXPECT_FALSE(e.commit({bad, 2}).ok()) << bad;
      expect_same(planes_of(e), before, "refused");
    }
    // State and window move together, in one call a layer.
    ASSERT_TRUE(e.commit({-1, 2}).ok());
    const auto after = planes_of(e);
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_NE(bit_difference(pool_slot(after[i], 2), pool_slot(before[i], 2)), "") << i;
      expect_untouched(after[i], before[i], {2}, "other rows");
    }
    // The kind is a field: a decode row of two tokens is an error, not a prefill.
    EXPECT_EQ(e.run({piece(RowKind::kDecode, 1, 5, 20, 2)}).code(), StatusCode::kInvalidArgument);
  }
}

TEST(RulesOfContract, Rule02_ASnapshotIsTheSplitAndChangesNothing) {
  Random random(2);
  for (const std::string& kernel : kKernelRows) {
    Engine plain(engine(kernel));
    ASSERT_TRUE(plain.run({piece(RowKind::kExtend, 1, 5, 0, 150)}).ok());
    for (int round = 0; round < 4; ++round) {
      const int64_t position = round == 0 ? 128 : random.integer(1, 150);
      Engine e(engine(kernel));
      StepExtras extras;
      extras.snapshots = {{0, position, 3}, {0, 150, kPadSlot}};
      ASSERT_TRUE(e.run({piece(RowKind::kExtend, 1, 5, 0, 150)}, extras).ok());
      expect_same(e.outputs(0, 150), plain.outputs(0, 150), "outputs");
      expect_same(e.slot(5), plain.slot(5), "final state");
      Engine split(engine(kernel));
      ASSERT_TRUE(
          split.run({piece(RowKind::kExtend, 1, 5, 0, static_cast<int32_t>(position))}).ok());
      const auto a = e.slot(3), b = split.slot(5);
      for (size_t i = 0; i < a.size(); ++i) {
        if (kernel == "ref" || position % kChunkTokens == 0 || a[i].dtype() == DType::kBF16) {
          EXPECT_EQ(bit_difference(a[i], b[i]), "") << position;
        } else {
          EXPECT_LE(compare(a[i], b[i]).rel, 2e-6) << position;
        }
      }
    }
    StepExtras extras;
    extras.snapshots = {{0, 151, 3}};  // not reached
    const auto before = planes_of(plain);
    EXPECT_FALSE(plain.run({piece(RowKind::kExtend, 1, 6, 0, 150)}, extras).ok());
    expect_same(planes_of(plain), before, "refused before launch");
  }
}

TEST(RulesOfContract, Rule05_ABucketIsTheExactBatch) {
  for (const std::string& kernel : kKernelRows) {
    for (const RowKind kind : {RowKind::kExtend, RowKind::kDecode, RowKind::kVerify}) {
      const int32_t tokens = kind == RowKind::kDecode ? 1 : 3;
      Engine exact(engine(kernel)), bucket(engine(kernel));
      std::vector<Piece> rows = {piece(kind, 1, 5, 9, tokens), piece(kind, 2, 2, 6, tokens)};
      for (Engine* e : {&exact, &bucket}) {
        ASSERT_TRUE(
            e->run({piece(RowKind::kExtend, 1, 5, 0, 9), piece(RowKind::kExtend, 2, 2, 0, 6)})
                .ok());
      }
      ASSERT_TRUE(exact.run(rows).ok());
      for (int n = 2; n < 8; ++n) rows.push_back(piece(kind, 9, kPadSlot, 1, tokens, 0));
      ASSERT_TRUE(bucket.run(rows, 40).ok());
      expect_same(bucket.outputs(0, 2 * tokens), exact.outputs(0, 2 * tokens), "live rows");
      for (const HostTensor& out : bucket.outputs(2 * tokens, 40)) EXPECT_EQ(nonzero(out), "");
      expect_same(planes_of(bucket), planes_of(exact), "pool");
    }
  }
}

// Offsets that break the contract never reach a pool.
TEST(RulesOfContract, Rule06_BadOffsetsAreRefused) {
  for (const std::string& kernel : kKernelRows) {
    for (const std::vector<int32_t>& offsets :
         {std::vector<int32_t>{1, 3, 6}, {0, 5, 4}, {0, 3, 7}, {0, -1, 6}}) {
      KdaProblem p = make_kda_problem(small_kda_shape(), 6, 6);
      p.set_rows({{1, 9, 3}, {2, 9, 3}});
      p.query_start_loc = i32_tensor(offsets);
      const HostTensor before = p.state.clone();
      const std::string error = run_kda(KdaPhase::kPrefill, p.params(), kernel);
      EXPECT_NE(error.find("query_start_loc"), std::string::npos) << error;
      EXPECT_EQ(bit_difference(p.state, before), "");
    }
  }
}

TEST(RulesOfContract, Rule07_NoGateMakesAnythingButAFiniteNumber) {
  for (const std::string& kernel : kKernelRows) {
    for (const KdaGate form : {KdaGate::kBounded, KdaGate::kSoftplus, KdaGate::kActivated}) {
      for (const double raw : {0.0, 1e4, -1e4, 1e30, -1e30, 88.0, -88.0}) {
        KdaShape shape = small_kda_shape();
        shape.gate_form = form;
        shape.lower_bound = form == KdaGate::kBounded ? -5.0f : 0.0f;
        KdaVerifyCase test = make_verify_case(shape, {{1, 64, 70}}, 7);
        KdaProblem& p = test.problem;
        fill_constant(p.gate, form == KdaGate::kActivated ? -std::abs(raw) : raw);
        fill_normal(p.beta, 71, 50.0);  // sigmoids at either end too
        const HostTensor before = p.state.clone();
        const std::string what = kernel + ", " + std::to_string(raw);
        ASSERT_EQ(test.verify(kernel), "");
        EXPECT_TRUE(compare(p.out, p.out).finite) << what;
        for (int64_t i = 0; i < test.alpha.num_elements(); ++i) {
          ASSERT_GE(test.alpha.at(i), 0.0) << what;
          ASSERT_LE(test.alpha.at(i), 1.0) << what;
        }
        expect_kda_call(KdaPhase::kPrefill, p, kernel, what);
        p.state = before.clone();
        p.set_rows({{1, 64, 1}});
        ASSERT_EQ(run_kda(KdaPhase::kDecode, slice_tokens(p, 0, 1), kernel), "");
        EXPECT_TRUE(compare(p.state, p.state).finite) << what;
      }
    }
  }
}

// Every operator on a pool whose slots lie 2^31 bytes apart.
TEST(RulesOfContract, Rule08_ClearCopyAndCommitBeyondFourBillionElements) {
  constexpr int64_t kStride = int64_t{1} << 29;  // elements: slot 9 starts beyond 2^32
  for (const std::string& kernel : kKernelRows) {
    KdaVerifyCase near = make_verify_case(small_kda_shape(), {{1, 9, 3}, {2, 9, 3}}, 8);
    KdaVerifyCase far = near.clone();
    far.rows = {{9, 9, 3}, {10, 9, 3}};
    far.problem.set_rows(far.rows);
    SparseMemory memory(11 * kStride * 4);
    TensorView pool = far.problem.state.view();
    pool.data = memory.data();
    pool.shape[0] = 11;
    pool.stride[0] = kStride;
    SparseMemory window_memory(11 * kStride * 2);
    TensorView window = far.window.view();
    window.data = window_memory.data();
    window.shape[0] = 11;
    window.stride[0] = kStride;
    // Copy in: small slot 1 -> 9, 2 -> 10; all of it with the library's own operator.
    const ConstTensorView src[] = {near.problem.state.view(), near.window.view()};
    const TensorView dst[] = {pool, window};
    const HostTensor from = i32_tensor({1, 2}), to = i32_tensor({9, 10});
    ASSERT_TRUE(state_copy({src, dst, from, to}, {}, kernel).ok());
    ASSERT_EQ(near.verify(kernel), "");
    ASSERT_EQ(near.commit(kernel, {2, 1}), "");
    KdaVerifyParams verify = far.verify_params();
    verify.kda.state = pool;
    ASSERT_EQ(call_op(kda_verify, kda_verify_workspace_bytes, verify, kernel), "");
    far.accepted = i32_tensor({2, 1});
    KdaCommitParams commit = far.commit_params();
    commit.state = pool;
    commit.window = window;
    ASSERT_EQ(call_op(kda_commit, kda_commit_workspace_bytes, commit, kernel), "");
    EXPECT_EQ(bit_difference(far.problem.out, near.problem.out), "");
    for (const int64_t n : {1, 2}) {
      EXPECT_EQ(bit_difference(pool.slice(0, 8 + n, 9 + n), pool_slot(near.problem.state, n)), "");
      EXPECT_EQ(bit_difference(window.slice(0, 8 + n, 9 + n), pool_slot(near.window, n)), "");
    }
    EXPECT_EQ(nonzero(pool.slice(0, 0, 9)), "") << "where a wrapped offset lands";
    EXPECT_EQ(nonzero(window.slice(0, 0, 9)), "");
    const HostTensor nine = i32_tensor({9});
    ASSERT_TRUE(state_clear({dst, nine}, {}, kernel).ok());
    EXPECT_EQ(nonzero(pool.slice(0, 9, 10)), "");
    EXPECT_EQ(bit_difference(pool.slice(0, 10, 11), pool_slot(near.problem.state, 2)), "");
  }
}

TEST(RulesOfContract, Rule09_ThePoolSaysItsLayoutAndOtherStridesAreReadAsSuch) {
  for (const std::string& kernel : kKernelRows) {
    for (const KdaPhase phase : {KdaPhase::kPrefill, KdaPhase::kDecode}) {
      KdaProblem p = make_kda_problem(small_kda_shape(), 2, 9);
      p.set_rows({{1, 9, 1}, {4, 64, 1}});
      KdaProblem turned = p.clone();
      HostTensor memory(DType::kF32, {8, 2, 32, 48});  // [P, HV, K, V] in memory
      const TensorView view = memory.view().transpose(2, 3);
      const ConstTensorView src[] = {p.state.view()};
      const TensorView dst[] = {view};
      const HostTensor all = i32_tensor({0, 1, 2, 3, 4, 5, 6, 7});
      ASSERT_TRUE(state_copy({src, dst, all, all}, {}, kernel).ok());
      ASSERT_EQ(run_kda(phase, p.params(), kernel), "");
      KdaParams params = turned.params();
      params.state = view;
      ASSERT_EQ(run_kda(phase, params, kernel), "");
      EXPECT_EQ(bit_difference(turned.out, p.out), "");
      EXPECT_EQ(bit_difference(view, p.state), "");
      params.state = memory.view();  // K and V the wrong way round
      EXPECT_NE(run_kda(phase, params, kernel).find("state"), std::string::npos);
    }
  }
}

TEST(RulesOfContract, Rule11_OneWindowRoutineForTreesToo) {
  Random random(11);
  for (const std::string& kernel : kKernelRows) {
    for (int round = 0; round < 20; ++round) {
      const int32_t nodes = static_cast<int32_t>(random.integer(1, 16));
      const std::vector<int32_t> parents = random_parents(random, nodes, false);
      const auto accepted = static_cast<int32_t>(random.integer(0, nodes - 1));
      const int64_t start = random.integer(0, 1) == 0 ? 0 : 9;
      KdaVerifyCase test = make_verify_case(small_kda_shape(), {{3, start, nodes}}, 12);
      test.parent = i32_tensor(parents);
      HostTensor expected = test.window.clone();
      const std::vector<int64_t> path = path_to(parents, accepted);
      for (int64_t c = 0; c < kConvChannels; ++c) {
        std::vector<double> history;
        for (int64_t j = 0; j < 3; ++j) {
          history.push_back(start == 0 ? 0.0 : test.window.at((3 * kConvChannels + c) * 3 + j));
        }
        for (const int64_t node : path) history.push_back(test.conv_x.at(node * kConvChannels + c));
        for (size_t j = 0; j < 3; ++j) {
          expected.set((3 * kConvChannels + c) * 3 + static_cast<int64_t>(j),
                       history[history.size() - 3 + j]);
        }
      }
      ASSERT_EQ(test.verify(kernel), "");
      ASSERT_EQ(test.commit(kernel, {accepted}), "");
      EXPECT_EQ(bit_difference(test.window, expected), "") << round;
    }
  }
}

TEST(RulesOfContract, Rule12_TheChoiceIsAFunctionOfTheProblem) {
  KdaProblem p = make_kda_problem(small_kda_shape(), 4, 13);
  p.set_rows({{1, 9, 4}});
  const KernelChoice first = explain_kda_prefill(p.params(), {});
  fill_nan(p.q);  // contents do not matter
  p.set_rows({{-1, 0, 4}});
  const KernelChoice second = explain_kda_prefill(p.params(), {});
  EXPECT_EQ(describe(first), describe(second));
  EXPECT_EQ(first.kernel, "cpu");
  EXPECT_EQ(explain_kda_prefill(p.params(), {}, "ref").kernel, "ref");
  EXPECT_EQ(explain_kda_prefill(p.params(), {}, "nope").kernel, "");
  EXPECT_NE(run_kda(KdaPhase::kPrefill, p.params(), "nope").find("nope"), std::string::npos);
  reset_kernel_uses();
  p.set_rows({{1, 9, 4}});
  for (int i = 0; i < 3; ++i) ASSERT_EQ(run_kda(KdaPhase::kPrefill, p.params(), "ref"), "");
  int64_t calls = 0;
  for (const KernelUse& use : kernel_uses()) {
    if (use.op == "kda_prefill" && use.kernel == "ref") calls = use.calls;
  }
  EXPECT_EQ(calls, 3);
}

// Verify and commit with groups: value head j uses key head j / (HV / H).
TEST(RulesOfContract, Rule13_OneHeadFormula) {
  for (const std::string& kernel : kKernelRows) {
    for (const auto& [H, HV] : {std::pair<int64_t, int64_t>{1, 4}, {2, 6}, {3, 3}}) {
      KdaShape shape = small_kda_shape();
      shape.H = H;
      shape.HV = HV;
      KdaVerifyCase test = make_verify_case(shape, {{1, 64, 5}}, 14);
      KdaProblem start = test.problem.clone();  // expect_kda maps heads on its own
      const KdaExpected expected = expect_kda(start);
      ASSERT_EQ(test.verify(kernel), "");
      expect_close(test.problem.out, expected.out, 1e-6, "verify");
      ASSERT_EQ(test.commit(kernel, {4}), "");
      expect_close(test.problem.state, expected.state, 5e-7, "commit");
    }
  }
}

// 8192 steps with a decay of 0.9999, decode and prefill.
TEST(RulesOfContract, Rule14_LightningLongHorizon) {
  constexpr int32_t kSteps = 8192;
  LightningShape shape;
  shape.rows = {{1, 0, kSteps}};
  shape.heads = 1;
  shape.dim = 32;
  shape.slots = 2;
  LightningCase prefill(shape);
  prefill.slopes = f32_tensor({1e-4f});
  prefill.bind();
  LightningCase decode(shape);
  decode.slopes = f32_tensor({1e-4f});
  decode.bind();
  const LightningExpected expected = expect_lightning(prefill);
  ASSERT_EQ(call_op(lightning_prefill, lightning_prefill_workspace_bytes, prefill.params, "cpu"),
            "");
  for (int64_t t = 0; t < kSteps; ++t) {
    const HostTensor slot = i32_tensor({1}), start = i64_tensor({t});
    LightningParams p = decode.params;
    p.rows = {slot, {}, start, {}};
    for (ConstTensorView* view : {&p.q, &p.k, &p.v}) *view = view->slice(0, t, t + 1);
    p.out = p.out.slice(0, t, t + 1);
    ASSERT_EQ(call_op(lightning_decode, lightning_decode_workspace_bytes, p, "cpu"), "");
  }
  const ConstTensorView want = pool_slot(expected.state, 1);
  expect_close(pool_slot(prefill.state, 1), want, 5e-5, "prefill");
  expect_close(pool_slot(decode.state, 1), want, 5e-5, "decode");
}

TEST(RulesOfContract, Rule16_BytesArePredictable) {
  for (const std::string& name : model_preset_names()) {
    const ModelConfig model = *model_preset(name);
    const PoolSpec spec = make_pool_spec(model, DType::kF32, DType::kBF16);
    int64_t slot = 0, token = 0;
    for (const LayerSpec& layer : model.linear_layers) {
      const HeadShape& h = layer.heads;
      slot += h.num_value_heads * h.k_dim * h.v_dim * 4;
      slot += layer.conv_channels() * (layer.conv_width - 1) * 2;
      if (layer.kind == LayerKind::kKda) {
        token += h.num_value_heads * (h.v_dim + h.k_dim) * 4 + h.num_heads * (h.k_dim * 2 + 4) +
                 layer.conv_channels() * 2;
      } else {
        token += 2 * h.num_heads * h.k_dim * 2;
      }
    }
    EXPECT_EQ(bytes_per_slot(spec), slot) << name;
    EXPECT_EQ(VerifyRecords::bytes_per_token(model, DType::kBF16), token) << name;
    EXPECT_EQ(max_slots(spec, 5 * slot + slot / 2), 5) << name;
    EXPECT_LT(token, slot / 8) << name;
  }
}

// A long row on few heads among others: its own bits, whatever was cut.
TEST(RulesOfContract, Rule17_LongRowsDoNotSeeTheirBatch) {
  for (const std::string& kernel : kKernelRows) {
    KdaShape shape = small_kda_shape();
    shape.H = shape.HV = 1;
    shape.K = shape.V = 16;
    KdaProblem alone = make_kda_problem(shape, 4200, 17);
    KdaProblem batch = alone.clone();
    alone.set_rows({{1, 0, 4000}});
    batch.set_rows({{1, 0, 4000}, {2, 9, 100}, {5, 0, 100}});
    ASSERT_EQ(run_kda(KdaPhase::kPrefill, alone.params(), kernel, 1), "");
    ASSERT_EQ(run_kda(KdaPhase::kPrefill, batch.params(), kernel, 2), "");
    EXPECT_EQ(bit_difference(part(batch.out, 0, 4000), part(alone.out, 0, 4000)), "");
    EXPECT_EQ(bit_difference(pool_slot(batch.state, 1), pool_slot(alone.state, 1)), "");
    expect_kda_call(KdaPhase::kPrefill, alone, kernel, "serial scan", 5e-5, 5e-5);
  }
}

}  // namespace
}  // namespace linestate::testing
