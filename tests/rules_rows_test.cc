// Rules 3, 4, 10 and 18, one property each, over every operator with rows, every kernel row and
// every dtype: padding, fresh rows, const inputs, determinism.
#include <climits>

#include "tests/op_probe_case.h"

namespace linestate::testing {
namespace {

class Rules : public OpRule {};
INSTANTIATE_TEST_SUITE_P(Ops, Rules,
                         ::testing::Combine(::testing::ValuesIn(kProbes),
                                            ::testing::Values("cpu", "ref")),
                         op_rule_name);

/// Outputs of row n, the first batch against the second.
void expect_row_outputs(const OpProbe& a, int64_t n, const OpProbe& b, int64_t m,
                        const std::string& what) {
  const int64_t t = a.tokens_per_row;
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    EXPECT_EQ(bit_difference(part(*a.outputs[i], n * t, (n + 1) * t),
                             part(*b.outputs[i], m * t, (m + 1) * t)),
              "")
        << what;
  }
}

TEST_P(Rules, Rule03_Padding) {
  for (const auto& [io, state] : kDTypePairs) {
    ProbeSetup setup{io, state, {{3, 9}, {-1, 9}, {8, 9}, {INT32_MIN, 0}, {INT32_MAX, 64}}, 8};
    OpProbe padded = make(setup);
    setup.rows = {{3, 9}};
    OpProbe alone = make(setup);
    const std::vector<HostTensor> before = copies(padded.pools);
    ASSERT_EQ(padded.run(kernel(), 1), "");
    ASSERT_EQ(alone.run(kernel(), 1), "");
    for (size_t i = 0; i < padded.pools.size(); ++i) {
      expect_untouched(*padded.pools[i], before[i], {3}, "pool " + std::to_string(i));
      EXPECT_EQ(bit_difference(pool_slot(*padded.pools[i], 3), pool_slot(*alone.pools[i], 3)), "");
    }
    const int64_t t = padded.tokens_per_row;
    for (const HostTensor* out : padded.outputs) EXPECT_EQ(nonzero(part(*out, t, 5 * t)), "");
    expect_row_outputs(padded, 0, alone, 0, "live row");
    // Nothing but padding: nothing at all.
    setup.rows = {{-1, 9}, {8, 0}};
    OpProbe empty = make(setup);
    const std::vector<HostTensor> kept = copies(empty.pools);
    ASSERT_EQ(empty.run(kernel(), 1), "");
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(bit_difference(*empty.pools[i], kept[i]), "") << i;
    }
    for (const HostTensor* out : empty.outputs) EXPECT_EQ(nonzero(*out), "");
  }
}

TEST_P(Rules, Rule04_FreshRowsSelectZeros) {
  if (op() == "replay_fold") {  // has no fresh rows; an empty ring is left as it is
    OpProbe probe = make({DType::kF32, DType::kF32, {{2, 0}}, 8});
    HostTensor& cursor = *probe.pools[4];
    cursor.set(2, 0);
    fill_nan(probe.pools[1]->view());
    const HostTensor before = probe.pools[0]->clone();
    ASSERT_EQ(probe.run(kernel(), 1), "");
    EXPECT_EQ(bit_difference(*probe.pools[0], before), "");
    return;
  }
  for (const auto& [io, state] : kDTypePairs) {
    const ProbeSetup setup{io, state, {{2, 0}, {5, 0}}, 8};
    OpProbe dirty = make(setup);
    OpProbe clean = make(setup);
    for (size_t i = 0; i < dirty.pools.size(); ++i) {
      if (dirty.pools[i]->dtype() == DType::kI32) continue;  // cursors of the last tenant stay
      fill_nan(dirty.pools[i]->view().slice(0, 2, 6));
      fill_constant(clean.pools[i]->view().slice(0, 2, 6), 0.0);
    }
    ASSERT_EQ(dirty.run(kernel(), 1), "");
    ASSERT_EQ(clean.run(kernel(), 1), "");
    for (const HostTensor* out : dirty.outputs) EXPECT_TRUE(compare(*out, *out).finite);
    for (int64_t n = 0; n < 2; ++n) expect_row_outputs(dirty, n, clean, n, "fresh row");
    if (op().find("verify") != std::string::npos) continue;  // writes no pool
    const bool replay = op().find("replay") != std::string::npos;
    if (replay) {  // the new record is right, older ones and S0 are not looked at
      for (const OpProbe* probe : {&dirty, &clean}) {
        EXPECT_EQ(probe->pools.back()->at(2), 1.0) << "one record";
      }
      continue;
    }
    for (size_t i = 0; i < dirty.pools.size(); ++i) {
      for (const int64_t s : {2, 5}) {
        EXPECT_EQ(bit_difference(pool_slot(*dirty.pools[i], s), pool_slot(*clean.pools[i], s)), "");
        const HostTensor after = copy_of(pool_slot(*dirty.pools[i], s));
        EXPECT_TRUE(compare(after, after).finite) << s;
      }
    }
  }
}

TEST_P(Rules, Rule10_InputsAreConst) {
  for (const auto& [io, state] : kDTypePairs) {
    OpProbe probe = make({io, state, {{3, 9}, {0, 0}, {-1, 9}, {6, 64}}, 8});
    std::vector<HostTensor> before;
    for (const HostTensor* input : probe.inputs) before.push_back(input->clone());
    ASSERT_EQ(probe.run(kernel(), 2), "");
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(bit_difference(*probe.inputs[i], before[i]), "") << i;
    }
  }
}

// Threads 1, 2, 3 and a second run: the same bits. A row alone, first of three: the same bits.
TEST_P(Rules, Rule18_BitsAreARowsOwn) {
  for (const auto& [io, state] : kDTypePairs) {
    ProbeSetup setup{io, state, {{3, 9}, {0, 0}, {6, 64}, {1, 127}}, 8};
    OpProbe first = make(setup);
    ASSERT_EQ(first.run(kernel(), 1), "");
    for (const int threads : {1, 2, 3}) {
      OpProbe again = make(setup);
      ASSERT_EQ(again.run(kernel(), threads), "");
      for (size_t i = 0; i < first.pools.size(); ++i) {
        EXPECT_EQ(bit_difference(*again.pools[i], *first.pools[i]), "") << threads;
      }
      for (size_t i = 0; i < first.outputs.size(); ++i) {
        EXPECT_EQ(bit_difference(*again.outputs[i], *first.outputs[i]), "") << threads;
      }
    }
    setup.rows = {{3, 9}};
    OpProbe alone = make(setup);
    ASSERT_EQ(alone.run(kernel(), 1), "");
    expect_row_outputs(first, 0, alone, 0, "alone");
    for (size_t i = 0; i < first.pools.size(); ++i) {
      EXPECT_EQ(bit_difference(pool_slot(*first.pools[i], 3), pool_slot(*alone.pools[i], 3)), "");
    }
  }
}

TEST(RulesOfSlots, Rule03_PaddingOfClearAndCopy) {
  for (const std::string& kernel : kKernelRows) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      HostTensor state(dtype, {8, 2, 32, 48}), window(dtype, {8, 40, 3});
      fill_normal(state, 33);
      fill_normal(window, 34);
      const HostTensor old_state = state.clone(), old_window = window.clone();
      const TensorView planes[] = {state.view(), window.view()};
      const ConstTensorView sources[] = {state.view(), window.view()};
      const HostTensor ids = i32_tensor({-1, 8, INT32_MIN, 3, INT32_MAX});
      ASSERT_TRUE(state_clear({planes, ids}, {}, kernel).ok());
      expect_untouched(state, old_state, {3}, "clear");
      expect_untouched(window, old_window, {3}, "clear");
      EXPECT_EQ(nonzero(pool_slot(state, 3)), "");
      EXPECT_EQ(nonzero(pool_slot(window, 3)), "");
      const HostTensor from = i32_tensor({-1, 5, 8, 6, INT32_MIN});
      const HostTensor to = i32_tensor({0, -1, 1, 3, INT32_MAX});
      ASSERT_TRUE(state_copy({sources, planes, from, to}, {}, kernel).ok());
      expect_untouched(state, old_state, {3}, "copy");
      expect_untouched(window, old_window, {3}, "copy");
      EXPECT_EQ(bit_difference(pool_slot(state, 3), pool_slot(old_state, 6)), "");
      EXPECT_EQ(bit_difference(pool_slot(window, 3), pool_slot(old_window, 6)), "");
    }
  }
}

}  // namespace
}  // namespace linestate::testing
