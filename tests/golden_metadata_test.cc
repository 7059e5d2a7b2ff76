// ForwardMetadata against the engine's own metadata in tests/golden/metadata.safetensors: slot ids,
// padding sentinels, query_start_loc and the counts, exactly. The `track_*` tensors and
// `bailing_mixed` describe another contract and are not compared (snapshots are in tokens here).
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "linestate/forward_batch.h"
#include "linestate/state_pool.h"
#include "testing/half.h"
#include "testing/safetensors.h"

namespace linestate::testing {
namespace {

using Ints = std::vector<int64_t>;

Ints ints_of(const ConstTensorView& view) {
  Ints out;
  for (int64_t i = 0; i < view.shape[0]; ++i) {
    const double value = load_f64(view.data, view.dtype, i * view.stride[0]);
    out.push_back(static_cast<int64_t>(value));
  }
  return out;
}

class GoldenMetadata : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<Safetensors> file =
        read_safetensors(LINESTATE_SOURCE_DIR "/tests/golden/metadata.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    file_ = std::move(*file);
    PoolSpec spec;
    spec.layers.push_back({0, StateLayout::kKV, 1, 16, 16, 0, 0});
    Result<StatePool> pool = StatePool::create(spec, 10);
    ASSERT_TRUE(pool.ok()) << pool.status().to_string();
    pool_.emplace(std::move(*pool));
    Result<ForwardMetadata> metadata = ForwardMetadata::create(8);
    ASSERT_TRUE(metadata.ok()) << metadata.status().to_string();
    metadata_.emplace(std::move(*metadata));
  }

  /// "decode", "in.mapping" -> values. Fails the test when absent.
  Ints ints(const std::string& name, const std::string& field) const {
    const Result<const HostTensor*> found = file_.tensor(name + "." + field);
    EXPECT_TRUE(found.ok()) << found.status().to_string();
    return found.ok() ? ints_of((*found)->view()) : Ints();
  }
  int64_t one(const std::string& name, const std::string& field) const {
    const Ints values = ints(name, field);
    EXPECT_EQ(values.size(), 1u) << name << "." << field;
    return values.empty() ? 0 : values[0];
  }

  /// The slots of the requests, before any padding is applied.
  std::vector<int32_t> slots(const std::string& name) const {
    const Ints mapping = ints(name, "in.mapping");
    std::vector<int32_t> out;
    for (int64_t index : ints(name, "in.req_pool_indices")) {
      out.push_back(static_cast<int32_t>(mapping.at(static_cast<size_t>(index))));
    }
    return out;
  }

  /// `tokens` a live row; rows from `live` on are padding of `pad_tokens`. Padding keeps the slot
  /// its request index maps to: the metadata must replace it.
  std::vector<Row> fixed_rows(const std::string& name, RowKind kind, int32_t tokens, size_t live,
                              int32_t pad_tokens) const {
    std::vector<Row> rows;
    for (int32_t slot : slots(name)) {
      const bool pad = rows.size() >= live;
      Row row;
      row.slot = slot;
      row.kind = pad ? RowKind::kPad : kind;
      row.start = 64;
      row.tokens = pad ? pad_tokens : tokens;
      rows.push_back(row);
    }
    return rows;
  }

  std::vector<Row> extend_rows(const std::string& name) const {
    const Ints lengths = ints(name, "in.extend_seq_lens");
    const Ints prefixes = ints(name, "in.extend_prefix_lens");
    std::vector<Row> rows;
    for (int32_t slot : slots(name)) {
      Row row;
      row.slot = slot;
      row.kind = RowKind::kExtend;
      row.start = prefixes.at(rows.size());
      row.tokens = static_cast<int32_t>(lengths.at(rows.size()));
      rows.push_back(row);
    }
    return rows;
  }

  void prepare(const std::vector<Row>& rows) {
    ForwardBatch batch;
    batch.rows = rows;
    const Status status = metadata_->prepare(batch, *pool_, {});
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  void expect_slots_and_offsets(const std::string& name) const {
    EXPECT_EQ(ints_of(metadata_->rows().slot), ints(name, "out.mamba_cache_indices")) << name;
    EXPECT_EQ(ints_of(metadata_->rows().query_start_loc), ints(name, "out.query_start_loc"))
        << name;
  }

  /// The counts and flags that only the Lightning ("bailing") metadata has.
  void expect_counts(const std::string& name) const {
    EXPECT_EQ(metadata_->num_rows(), one(name, "out.batch_size")) << name;
    EXPECT_EQ(metadata_->num_prefills(), one(name, "out.num_prefills")) << name;
    EXPECT_EQ(metadata_->num_prefill_tokens(), one(name, "out.num_prefill_tokens")) << name;
    Ints resumed;
    for (int64_t start : ints_of(metadata_->rows().start)) resumed.push_back(start > 0 ? 1 : 0);
    EXPECT_EQ(resumed, ints(name, "out.has_initial_states")) << name;
    const Ints offsets = ints_of(metadata_->rows().query_start_loc);
    Ints lengths;
    for (size_t n = 0; n + 1 < offsets.size(); ++n) lengths.push_back(offsets[n + 1] - offsets[n]);
    EXPECT_EQ(lengths, ints(name, "out.q_lengths")) << name;
  }

  Safetensors file_;
  std::optional<StatePool> pool_;
  std::optional<ForwardMetadata> metadata_;
};

TEST_F(GoldenMetadata, Decode) {
  ASSERT_EQ(one("decode", "in.original_batch_size"), -1);  // nothing padded
  prepare(fixed_rows("decode", RowKind::kDecode, 1, 4, 1));
  expect_slots_and_offsets("decode");
  EXPECT_EQ(metadata_->num_decodes(), 4);
}

TEST_F(GoldenMetadata, DecodePaddedKeepsTheOffsetsOfItsPlaceholders) {
  const auto live = static_cast<size_t>(one("decode_padded", "in.original_batch_size"));
  prepare(fixed_rows("decode_padded", RowKind::kDecode, 1, live, 1));
  expect_slots_and_offsets("decode_padded");
}

TEST_F(GoldenMetadata, Extend) {
  prepare(extend_rows("extend"));
  expect_slots_and_offsets("extend");
  Ints offsets = ints_of(metadata_->rows().query_start_loc);
  offsets.pop_back();
  EXPECT_EQ(offsets, ints("extend", "in.extend_start_loc"));
}

TEST_F(GoldenMetadata, BailingExtend) {
  prepare(extend_rows("bailing_extend"));
  expect_slots_and_offsets("bailing_extend");
  expect_counts("bailing_extend");
  EXPECT_EQ(metadata_->num_decodes(), one("bailing_extend", "out.num_decodes"));
  EXPECT_EQ(metadata_->num_tokens(), one("bailing_extend", "in.extend_num_tokens"));
}

TEST_F(GoldenMetadata, BailingDecode) {
  std::vector<Row> rows = fixed_rows("bailing_decode", RowKind::kDecode, 1, 4, 1);
  const Ints lengths = ints("bailing_decode", "in.seq_lens");  // this step's token included
  for (size_t n = 0; n < rows.size(); ++n) rows[n].start = lengths.at(n) - 1;
  prepare(rows);
  expect_slots_and_offsets("bailing_decode");
  expect_counts("bailing_decode");
  EXPECT_EQ(metadata_->num_decodes(), one("bailing_decode", "out.num_decodes"));
}

TEST_F(GoldenMetadata, ReplayedDecodeRepeatsItsLastOffset) {
  for (const std::string name : {"replay_decode", "replay_decode_nopad"}) {
    const auto live = static_cast<size_t>(4 - one(name, "in.num_padding"));
    prepare(fixed_rows(name, RowKind::kDecode, 1, live, 0));
    expect_slots_and_offsets(name);
    EXPECT_EQ(metadata_->num_decodes(), static_cast<int64_t>(live)) << name;
  }
}

TEST_F(GoldenMetadata, Verify) {
  const auto tokens = static_cast<int32_t>(one("target_verify", "in.draft_token_num"));
  prepare(fixed_rows("target_verify", RowKind::kVerify, tokens, 4, 0));
  expect_slots_and_offsets("target_verify");
}

TEST_F(GoldenMetadata, ReplayedVerify) {
  const auto tokens = static_cast<int32_t>(one("replay_verify", "in.draft_token_num"));
  const auto live = static_cast<size_t>(4 - one("replay_verify", "in.num_padding"));
  prepare(fixed_rows("replay_verify", RowKind::kVerify, tokens, live, 0));
  expect_slots_and_offsets("replay_verify");
}

TEST_F(GoldenMetadata, ReplayedLightningDecode) {
  prepare(fixed_rows("lightning_replay_decode", RowKind::kDecode, 1, 3, 0));
  expect_slots_and_offsets("lightning_replay_decode");
  expect_counts("lightning_replay_decode");
  // The engine counts its padding as decodes; here padding is a kind of its own.
  EXPECT_EQ(metadata_->num_decodes() + 1, one("lightning_replay_decode", "out.num_decodes"));
}

}  // namespace
}  // namespace linestate::testing
