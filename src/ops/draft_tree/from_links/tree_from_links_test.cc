// Parents from links: small trees by hand, random trees there and back, refusals; and the walk over
// parents that verify and commit use.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "linestate/ops/draft_tree.h"
#include "ops/draft_tree/draft_path.h"
#include "testing/compare.h"
#include "testing/fill.h"
#include "testing/host_tensor.h"

namespace linestate::testing {
namespace {

using Ids = std::vector<int64_t>;

HostTensor matrix(DType dtype, int64_t columns, const Ids& values) {
  HostTensor out(dtype, {static_cast<int64_t>(values.size()) / columns, columns});
  for (size_t i = 0; i < values.size(); ++i) {
    out.set(static_cast<int64_t>(i), static_cast<double>(values[i]));
  }
  return out;
}

Ids ids_of(const HostTensor& tensor) {
  Ids out;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    out.push_back(static_cast<int64_t>(tensor.at(i)));
  }
  return out;
}

class TreeFromLinks : public ::testing::TestWithParam<const char*> {
 protected:
  static Status run(const HostTensor& child, const HostTensor& sibling, HostTensor& parent,
                    int threads = 1) {
    ExecContext context;
    context.num_threads = threads;
    return tree_from_links({child, sibling, parent}, context, GetParam());
  }
  // Parents, or the message of the refusal.
  static std::string text(int64_t D, const Ids& child, const Ids& sibling) {
    HostTensor parent = matrix(DType::kI32, D, Ids(child.size(), 77));
    const Status status =
        run(matrix(DType::kI32, D, child), matrix(DType::kI64, D, sibling), parent);
    if (!status.ok()) return status.message();
    std::string out;
    for (int64_t id : ids_of(parent)) out += std::to_string(id) + " ";
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(All, TreeFromLinks, ::testing::Values("cpu", "ref"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TreeFromLinks, ByHand) {
  EXPECT_EQ(text(4, {1, 2, 3, -1}, {-1, -1, -1, -1}), "-1 0 1 2 ");
  //      0 -> 1, 2; 1 -> 3, 5; 2 -> 4
  EXPECT_EQ(text(6, {1, 3, 4, -1, -1, -1}, {-1, 2, -1, 5, -1, -1}), "-1 0 0 1 2 1 ");
  // 2 is named by nobody, so 3 and its sibling 4 are not reached; nor is a sibling of the root.
  EXPECT_EQ(text(5, {1, -1, 3, -1, -1}, {-1, -1, -1, 4, -1}), "-1 0 -1 -1 -1 ");
  EXPECT_EQ(text(3, {-1, 2, -1}, {1, -1, -1}), "-1 -1 -1 ");
  EXPECT_EQ(text(1, {-1, -1}, {-1, -1}), "-1 -1 ");
}

TEST_P(TreeFromLinks, RandomTreesThereAndBack) {
  Random random(11);
  for (int64_t D : {1, 2, 7, 16, 256}) {
    constexpr int64_t kRows = 9;
    Ids want;
    Ids child(static_cast<size_t>(kRows * D), -1);
    Ids sibling = child;
    for (int64_t n = 0; n < kRows; ++n) {
      const auto base = static_cast<size_t>(n * D);
      Ids youngest(static_cast<size_t>(D), -1);
      for (int64_t i = 0; i < D; ++i) {
        int64_t parent = i == 0 ? -1 : random.integer(-1, i - 1);
        // Nothing hangs from a node that nobody names.
        if (parent > 0 && want[base + static_cast<size_t>(parent)] < 0) parent = 0;
        want.push_back(parent);
        if (parent < 0) continue;
        int64_t& last = youngest[static_cast<size_t>(parent)];
        if (last < 0) child[base + static_cast<size_t>(parent)] = i;
        if (last >= 0) sibling[base + static_cast<size_t>(last)] = i;
        last = i;
      }
    }
    for (int threads : {1, 2, 3}) {
      HostTensor parent = matrix(DType::kI32, D, Ids(static_cast<size_t>(kRows * D), 77));
      ASSERT_TRUE(
          run(matrix(DType::kI32, D, child), matrix(DType::kI32, D, sibling), parent, threads)
              .ok());
      EXPECT_EQ(ids_of(parent), want) << D;
    }
  }
}

TEST_P(TreeFromLinks, Refusals) {
  EXPECT_EQ(text(3, {0, -1, -1}, {-1, -1, -1}),
            "first_child: expected -1 or a node from 1 to 2 for node 0 of row 0, got 0");
  EXPECT_EQ(text(3, {1, -1, -1}, {-1, 3, -1}),
            "next_sibling: expected -1 or a node from 2 to 2 for node 1 of row 0, got 3");
  EXPECT_EQ(text(3, {-2, -1, -1}, {-1, -1, -1}),
            "first_child: expected -1 or a node from 1 to 2 for node 0 of row 0, got -2");
  EXPECT_EQ(text(3, {1, 2, -1}, {-1, 2, -1}),
            "next_sibling: expected every node to be named once, got node 2 again at node 1 of "
            "row 0");
  HostTensor links(DType::kI32, {2, 257});
  HostTensor parent(DType::kI32, {2, 257});
  EXPECT_NE(run(links, links, parent).message().find("at most 256"), std::string::npos);
  HostTensor small(DType::kI32, {2, 3});
  HostTensor wide(DType::kI64, {2, 3});
  EXPECT_NE(run(small, small, wide).message().find("parent: expected dtype i32"),
            std::string::npos);
  EXPECT_NE(run(small, small, small).message().find("apart"), std::string::npos);
}

RowInfo row_of(int64_t begin, int64_t valid) {
  RowInfo row;
  row.live = true;
  row.token_begin = begin;
  row.tokens = row.valid = valid;
  return row;
}

TEST(DraftPathTest, PathsAndInertNodes) {
  //                                      |row begins here
  const HostTensor parent = i32_tensor({9, 9, -1, 0, -1, 1, 2, 3, 0});
  const DraftTree tree(parent, row_of(2, 7));
  EXPECT_EQ(tree.nodes(), 7);
  const std::vector<bool> inert = {false, false, true, false, true, false, false};
  for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(tree.inert(i), inert[static_cast<size_t>(i)]) << i;
  const DraftPath path = tree.path_to(5);
  const Ids nodes(path.node.begin(), path.node.begin() + path.length);
  EXPECT_EQ(nodes, (Ids{0, 1, 3, 5}));
  EXPECT_EQ(tree.depth(0), 1);
  EXPECT_EQ(tree.depth(6), 2);
}

TEST(DraftPathTest, UndefinedParentsAreAChain) {
  const DraftTree tree(ConstTensorView(), row_of(40, 256));
  EXPECT_EQ(tree.parent_of(0), -1);
  EXPECT_EQ(tree.depth(255), 256);
  const DraftPath path = tree.path_to(255);
  for (int64_t i = 0; i < 256; ++i) EXPECT_EQ(path.node[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace linestate::testing
