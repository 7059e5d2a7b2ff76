#include "linestate/tp_shard.h"

#include <gtest/gtest.h>

#include <string>

namespace linestate {
namespace {

TEST(TpShard, CutsHeadsIntoContiguousRangesThatCoverAll) {
  for (int32_t size : {1, 2, 4, 8}) {
    int64_t next = 0;
    for (int32_t rank = 0; rank < size; ++rank) {
      const Result<HeadRange> range = TpShard{rank, size}.heads(64);
      ASSERT_TRUE(range.ok()) << range.status().to_string();
      EXPECT_EQ(range->begin, next);
      EXPECT_EQ(range->size(), 64 / size);
      next = range->end;
    }
    EXPECT_EQ(next, 64);
  }
  EXPECT_EQ(*(TpShard{2, 3}.heads(6)), (HeadRange{4, 6}));
}

TEST(TpShard, RefusesBadShardsAndHeadsByName) {
  EXPECT_EQ(TpShard({0, 0}).validate().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(TpShard({-1, 2}).validate().code(), StatusCode::kInvalidArgument);
  const Status rank = TpShard({2, 2}).validate();
  EXPECT_EQ(rank.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(rank.message(), "tp rank: expected 0 to 1, got 2");
  EXPECT_EQ(TpShard({2, 2}).heads(4).status().message(), rank.message());

  const Status heads = TpShard({0, 4}).heads(6, "num_value_heads").status();
  EXPECT_EQ(heads.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(heads.message(), "num_value_heads: expected a multiple of the tp size 4, got 6");
  EXPECT_EQ(TpShard({0, 1}).heads(0).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace linestate
