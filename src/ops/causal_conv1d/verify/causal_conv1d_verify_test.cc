#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "linestate/ops/kda_verify.h"
#include "ops/causal_conv1d/conv_case.h"
#include "ops/draft_tree/random_tree_case.h"
#include "testing/compare.h"

namespace linestate::testing {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF16 = DType::kF16;

Row verify(int32_t slot, int64_t start, int32_t tokens, int32_t num_valid = -1) {
  return {slot, RowKind::kVerify, start, tokens, num_valid, -1};
}

// Resumed, fresh, padded, empty, with placeholders; `nodes` drafts where it matters.
std::vector<Row> mixed_rows(int32_t nodes) {
  return {verify(3, 64, nodes),    verify(-1, 64, nodes),
          verify(0, 0, nodes),     verify(5, 7, nodes, std::min(nodes, 2)),
          verify(9, 1, 3),         verify(6, 64, 0),
          verify(2, 64, nodes, 0), verify(7, 5, 1)};
}

std::vector<std::vector<int32_t>> trees_of(const std::vector<Row>& rows, uint64_t seed,
                                           bool inert) {
  Random random(seed);
  std::vector<std::vector<int32_t>> trees;
  for (const Row& row : rows) trees.push_back(random_parents(random, row.tokens, inert));
  return trees;
}

HostTensor packed(const std::vector<std::vector<int32_t>>& trees, int64_t tokens) {
  std::vector<int32_t> parents;
  for (const std::vector<int32_t>& tree : trees) {
    parents.insert(parents.end(), tree.begin(), tree.end());
  }
  parents.resize(static_cast<size_t>(tokens), -5);  // behind the rows: not read
  return i32_tensor(parents);
}

HostTensor rows_of(const ConstTensorView& x, int64_t first, const std::vector<int64_t>& path) {
  HostTensor out(x.dtype, {static_cast<int64_t>(path.size()), x.shape[1]});
  for (size_t i = 0; i < path.size(); ++i) {
    const HostTensor row = copy_of(x.slice(0, first + path[i], first + path[i] + 1));
    std::memcpy(static_cast<char*>(out.data()) + static_cast<int64_t>(i) * row.bytes(), row.data(),
                static_cast<size_t>(row.bytes()));
  }
  return out;
}

// The last output of a prefill over the path's inputs, on a copy of the windows.
HostTensor prefill_along(const ConvCase& c, const Row& row, int64_t first,
                         const std::vector<int64_t>& path, const char* kernel) {
  const auto tokens = static_cast<int32_t>(path.size());
  ConvCase piece(c.shape, {{row.slot, RowKind::kExtend, row.start, tokens, -1, -1}});
  HostTensor window = c.window.clone();
  const HostTensor x = rows_of(c.x, first, path);
  CausalConv1dParams p = piece.params();
  p.x = x;
  p.weight = c.weight;
  if (c.bias.defined()) p.bias = c.bias;
  p.window = window;
  EXPECT_TRUE(causal_conv1d_prefill(p, {}, kernel).ok());
  return copy_of(piece.out.view().slice(0, tokens - 1, tokens));
}

class CausalConv1dVerify : public ::testing::TestWithParam<const char*> {
 protected:
  void run(ConvCase& c, const ConstTensorView& parent, int threads = 0) {
    ExecContext context;
    context.num_threads = threads;
    DeviceStatus device;
    context.status = &device;
    CausalConv1dVerifyParams p;
    p.conv = c.params();
    p.parent = parent;
    const Status status = causal_conv1d_verify(p, context, GetParam());
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  // Every node against a prefill of its path, everything else zero, windows untouched.
  void expect_paths(ConvCase& c, const std::vector<std::vector<int32_t>>& trees,
                    const HostTensor& window_before) {
    int64_t first = 0;
    int64_t compared = 0;
    for (size_t n = 0; n < c.rows.size(); ++n) {
      const Row& row = c.rows[n];
      const bool live = row.slot >= 0 && row.slot < c.shape.slots;
      for (int64_t i = 0; i < row.tokens; ++i) {
        const ConstTensorView out = c.out.view().slice(0, first + i, first + i + 1);
        const std::vector<int64_t> path = path_to(trees[n], i);
        if (!live || i >= row.num_valid || path.empty()) {
          EXPECT_EQ(nonzero(out), "") << "row " << n << " node " << i;
          continue;
        }
        const HostTensor want = prefill_along(c, row, first, path, GetParam());
        EXPECT_EQ(bit_difference(out, want), "") << "row " << n << " node " << i;
        ++compared;
      }
      first += row.tokens;
    }
    EXPECT_GT(compared, 3);
    EXPECT_EQ(nonzero(c.out.view().slice(0, first, c.tokens())), "");
    EXPECT_EQ(bit_difference(c.window, window_before), "");
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, CausalConv1dVerify, ::testing::Values("cpu", "ref"));

TEST_P(CausalConv1dVerify, EveryNodeOfARandomTreeIsItsOwnPath) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    ConvShape s;
    s.slots = 9;
    s.channels = seed == 1 ? 300 : 40;
    s.width = 2 + static_cast<int64_t>(seed % 3);
    const std::vector<Row> rows = mixed_rows(static_cast<int32_t>(3 * seed - 2));
    ConvCase c(s, rows, 70 + 15 * static_cast<int64_t>(seed), seed);
    const std::vector<std::vector<int32_t>> trees = trees_of(rows, seed, true);
    const HostTensor parent = packed(trees, c.tokens());
    const HostTensor before = c.window.clone();
    run(c, parent);
    expect_paths(c, trees, before);
  }
}

TEST_P(CausalConv1dVerify, EveryDtype) {
  for (DType x : {kF32, kBF16, kF16}) {
    for (DType out : {kF32, kBF16, kF16}) {
      for (Activation activation : {Activation::kNone, Activation::kSilu}) {
        ConvShape s;
        s.channels = 48;
        s.slots = 9;
        s.x = x;
        s.out = out;
        s.weight = out;
        s.window = out == kF32 ? kF32 : x;
        s.activation = activation;
        if (out == kF16) s.bias.reset();
        const std::vector<Row> rows = mixed_rows(6);
        ConvCase c(s, rows, -1, 17);
        const std::vector<std::vector<int32_t>> trees = trees_of(rows, 23, true);
        const HostTensor parent = packed(trees, c.tokens());
        const HostTensor before = c.window.clone();
        run(c, parent);
        expect_paths(c, trees, before);
      }
    }
  }
}

TEST_P(CausalConv1dVerify, AChainGivesTheBitsOfPrefill) {
  for (DType x : {kF32, kBF16}) {
    ConvShape s;
    s.slots = 9;
    s.x = x;
    s.window = x;
    s.out = x;
    const std::vector<Row> rows = mixed_rows(5);
    ConvCase prefill(s, rows, 40);
    const ConvExpected expected = conv_oracle(prefill);
    ASSERT_TRUE(causal_conv1d_prefill(prefill.params(), {}, GetParam()).ok());

    ConvCase chain(s, rows, 40);
    run(chain, {});
    EXPECT_EQ(bit_difference(chain.out, prefill.out), "");
    const Difference diff = compare(chain.out, expected.out);
    EXPECT_LE(diff.rel, conv_tolerance(expected.out, x)) << diff.text();

    std::vector<std::vector<int32_t>> trees;
    for (const Row& row : rows) {
      trees.emplace_back();
      for (int32_t i = 0; i < row.tokens; ++i) trees.back().push_back(i - 1);
    }
    ConvCase named(s, rows, 40);
    run(named, packed(trees, named.tokens()));
    EXPECT_EQ(bit_difference(named.out, prefill.out), "");
  }
}

TEST(CausalConv1dVerifyKernels, NarrowOutputsHaveTheSameBits) {
  for (DType dtype : {kBF16, kF16}) {
    ConvShape s;
    s.channels = 272;
    s.slots = 9;
    s.x = dtype;
    s.window = dtype;
    s.out = dtype;
    const std::vector<Row> rows = mixed_rows(16);
    const std::vector<std::vector<int32_t>> trees = trees_of(rows, 5, true);
    ConvCase cpu(s, rows), ref(s, rows);
    const HostTensor parent = packed(trees, cpu.tokens());
    ASSERT_TRUE(causal_conv1d_verify({cpu.params(), parent}, {}, "cpu").ok());
    ASSERT_TRUE(causal_conv1d_verify({ref.params(), parent}, {}, "ref").ok());
    EXPECT_EQ(bit_difference(cpu.out, ref.out), "");
  }
}

// NaN in the slot of a fresh row, in unused slots, in inert and placeholder inputs: nobody looks.
TEST_P(CausalConv1dVerify, PoisonStaysWhereItIs) {
  const std::vector<Row> rows = {verify(3, 64, 5), verify(0, 0, 5, 4), verify(-1, 0, 4),
                                 verify(8, 3, 2)};
  const std::vector<std::vector<int32_t>> trees = {
      {-1, 0, -1, 1, 2}, {-1, 0, 0, 2, 3}, {-1, 0, 1, 2}, {-1, 0}};
  ConvShape s;
  s.slots = 8;
  ConvCase clean(s, rows, 20);
  ConvCase dirty(s, rows, 20);
  const HostTensor parent = packed(trees, clean.tokens());
  for (int64_t slot : {0, 1, 2, 4, 5, 6, 7}) {
    fill_nan(dirty.window.view().slice(0, slot, slot + 1));
  }
  for (int64_t token : {2, 4, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}) {
    fill_nan(dirty.x.view().slice(0, token, token + 1));
  }
  const HostTensor before = dirty.window.clone();
  run(clean, parent);
  run(dirty, parent);
  EXPECT_EQ(bit_difference(dirty.out, clean.out), "");
  EXPECT_EQ(bit_difference(dirty.window, before), "");
  for (int64_t token : {2, 4, 9, 10, 13, 14, 15, 19}) {
    EXPECT_EQ(nonzero(clean.out.view().slice(0, token, token + 1)), "") << token;
  }
}

TEST_P(CausalConv1dVerify, ThreadsAndBatchMatesDoNotMatter) {
  ConvShape s;
  s.slots = 9;
  const std::vector<Row> rows = mixed_rows(7);
  const std::vector<std::vector<int32_t>> trees = trees_of(rows, 3, true);
  ConvCase one(s, rows);
  const HostTensor parent = packed(trees, one.tokens());
  run(one, parent, 1);
  for (int threads : {2, 3}) {
    ConvCase more(s, rows);
    run(more, parent, threads);
    EXPECT_EQ(bit_difference(more.out, one.out), "");
  }
  ConvCase alone(s, {rows[2]});
  CausalConv1dVerifyParams p;
  p.conv = alone.params();
  const int64_t first = 14;  // behind two rows of 7
  p.conv.x = one.x.view().slice(0, first, first + 7);
  p.conv.window = one.window;
  p.parent = parent.view().slice(0, first, first + 7);
  p.conv.weight = one.weight;
  p.conv.bias = one.bias;
  ASSERT_TRUE(causal_conv1d_verify(p, {}, GetParam()).ok());
  EXPECT_EQ(bit_difference(alone.out, one.out.view().slice(0, first, first + 7)), "");
}

TEST_P(CausalConv1dVerify, StridedViewsAndWideParents) {
  ConvShape s;
  s.channels = 30;
  const std::vector<Row> rows = {verify(1, 64, 6), verify(4, 64, 3)};
  const std::vector<std::vector<int32_t>> trees = trees_of(rows, 9, false);
  ConvCase plain(s, rows);
  run(plain, packed(trees, plain.tokens()));

  ConvCase strided(s, rows);
  HostTensor wide(kF32, {9, 100});
  HostTensor turned(kF32, {8, 3, 30});
  HostTensor parents(DType::kI64, {9, 2});
  fill_nan(wide);
  CausalConv1dVerifyParams p;
  p.conv = strided.params();
  for (int64_t t = 0; t < 9; ++t) {
    for (int64_t c = 0; c < 30; ++c) wide.set(t * 100 + 3 * c, strided.x.at(t * 30 + c));
    parents.set(t * 2,
                t < 6 ? trees[0][static_cast<size_t>(t)] : trees[1][static_cast<size_t>(t - 6)]);
  }
  for (int64_t slot = 0; slot < 8; ++slot) {
    for (int64_t c = 0; c < 30; ++c) {
      for (int64_t j = 0; j < 3; ++j) {
        turned.set((slot * 3 + j) * 30 + c, strided.window.at((slot * 30 + c) * 3 + j));
      }
    }
  }
  p.conv.x = wide.view().slice(1, 0, 90).split(1, 3).select(2, 0);
  p.conv.window = turned.view().transpose(1, 2);
  p.parent = parents.view().select(1, 0);
  ASSERT_TRUE(causal_conv1d_verify(p, {}, GetParam()).ok());
  EXPECT_EQ(bit_difference(strided.out, plain.out), "");
}

TEST_P(CausalConv1dVerify, RefusesByName) {
  ConvShape s;
  s.channels = 16;
  const auto message = [&](const std::vector<Row>& rows, const HostTensor& parent, bool snapshots) {
    ConvCase c(s, rows);
    CausalConv1dVerifyParams p{c.params(), parent.view()};
    const HostTensor plan = i32_tensor({0});
    if (snapshots) p.conv.snapshots = {plan, plan, plan};
    const Status status = causal_conv1d_verify(p, {}, GetParam());
    for (int64_t i = 0; i < c.out.num_elements(); ++i) EXPECT_TRUE(std::isnan(c.out.at(i)));
    return status.to_string();
  };
  const std::vector<Row> rows = {verify(1, 4, 3), verify(2, 4, 2)};
  EXPECT_EQ(message(rows, i32_tensor({-1, 0, 2, -1, 0}), false),
            "invalid_argument: parent: expected -1 to 1 for node 2 of row 0, got 2");
  EXPECT_EQ(message(rows, i32_tensor({-1, 0, 0, -1, -2}), false),
            "invalid_argument: parent: expected -1 to 0 for node 1 of row 1, got -2");
  EXPECT_EQ(message(rows, i32_tensor({-1, 0, 0, 0, 0}), false),
            "invalid_argument: parent: expected -1 to -1 for node 0 of row 1, got 0");
  EXPECT_EQ(message(rows, i32_tensor({-1, 0, 0, -1}), false).find("invalid_argument: parent: "),
            0u);
  EXPECT_EQ(
      message(rows, i32_tensor({-1, 0, 0, -1, 0}), true).find("invalid_argument: snapshots: "), 0u);
  std::vector<int32_t> chain;
  for (int32_t i = 0; i < 257; ++i) chain.push_back(i - 1);
  EXPECT_NE(message({verify(1, 4, 257)}, i32_tensor(chain), false).find("at most 256"),
            std::string::npos);
}

}  // namespace
}  // namespace linestate::testing
